"""Connects the actor to the learner: a thread that reconnects, sends steps and receives
parameters."""

from __future__ import annotations

import hashlib
import logging
import socket
import threading
import time
from pathlib import Path
from typing import Literal, NamedTuple

from websockets.exceptions import (
    ConnectionClosed,
    ConnectionClosedOK,
    InvalidHandshake,
    InvalidMessage,
    InvalidStatus,
    InvalidURI,
)
from websockets.sync.client import ClientConnection, connect

from real.hil.actor_policy import ActorPolicy
from real.hil.journal import Journal
from robots.config import Count, Delay, Seconds, config
from robots.errors import HandoffError
from robots.storage.durable import write_atomically
from robots.wire.learner import Acknowledgement, Hello, Parameters, Pause, decode, encode
from robots.wire.policy import check_token

LOG = logging.getLogger(__name__)
POLICY = "policy.msgpack"
"""Name of the file of the newest parameters, in the form in which they are sent."""
KEPT_DIGESTS = 64
"""Number of versions whose digests are kept: more than arrive within a step."""
POLL = 0.02
"""Longest time between checks of the journal [s]."""


@config
class LearnerClientConfig:
    """Address of the learner and limits of the connection."""

    uri: str = "ws://127.0.0.1:8010"
    """Address of the learner: ws:// or wss://, host and port. Traffic is not encrypted with ws://:
    beyond this machine, use a tunnel."""
    connect_seconds: Seconds = 5.0
    """Time limit for one attempt to connect, and for the learner's first answer [s]."""
    wait_first: Delay = 0.2
    """Time from a lost connection to the first attempt to reconnect [s]; doubles with every attempt
    up to `wait_longest`."""
    wait_longest: Delay = 5.0
    """Longest time between attempts to reconnect [s]."""
    window: Count = 64
    """Largest number of entries that are sent but not acknowledged."""
    silence: Seconds = 10.0
    """Time without an answer to a ping, or without progress of a send, after which the connection
    is lost [s]."""
    largest_frame: Count = 2**28
    """Largest size of a message from the learner [bytes]."""
    keep_seconds: Delay = 5.0
    """Shortest time between two writes of the newest parameters to disk [s]."""


class LearnerClientState(NamedTuple):
    """State of the connection, for displays."""

    condition: Literal["connecting", "connected", "refused", "closed"]
    """`refused`: a learner answers but does not accept the token, the task or the steps; the client
    tries again nevertheless."""
    trouble: str
    """The last error; empty when connected."""
    waiting: int
    """Number of committed entries that the learner has not acknowledged."""
    version: int
    """Version of the newest parameters; -1 before the first."""


class LearnerClient:
    """The actor's end of the connection to the learner; runs from `start` to `close`. The acting
    thread never waits for it.

    The newest parameters are kept on disk, so that a restarted actor can act before its learner is
    back.

    Args:
        journal: journal whose entries are sent.
        config: address and limits.
        token: token that the learner expects.
        keep: folder for the newest parameters; made if missing.

    Raises:
        HandoffError: an unusable token.
    """

    def __init__(
        self, journal: Journal, config: LearnerClientConfig, token: str, keep: Path
    ) -> None:
        check_token(token)
        self._journal = journal
        self._config = config
        self._token = token
        self._file = keep / POLICY
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="learner-client", daemon=True)
        self._acknowledged = journal.first_number - 1
        """Number of the newest entry that the learner has acknowledged."""
        self._progress = threading.Condition()
        self._condition: Literal["connecting", "connected", "refused", "closed"] = "connecting"
        self._trouble = ""
        self._ended = False
        """Whether the learner has said that it ends, and has not been reached since."""
        self._paused = False
        self._unsaved: bytes | None = None
        """The newest parameters as a message, until they are written to disk."""
        self._saved_at = -float("inf")
        """Time of the last write of parameters [s]."""
        self._digests: dict[int, str] = {}
        """Digests of the newest parameters, by their version."""
        self._policy = self._load_policy()

    @property
    def policy(self) -> ActorPolicy | None:
        """The policy with the newest parameters; None before the first."""
        return self._policy

    def digest(self, version: int) -> str | None:
        """Digest (hex sha256) of the parameters of a version, as they are sent; None for one that
        never arrived, or after which many others did."""
        return self._digests.get(version)

    @property
    def paused(self) -> bool:
        """Whether the learner wants the actor to hold still; a lost connection ends that."""
        return self._paused

    @property
    def state(self) -> LearnerClientState:
        """State of the connection at this moment."""
        policy = self._policy
        waiting = self._journal.next_number - 1 - self._acknowledged
        return LearnerClientState(
            self._condition, self._trouble, waiting, -1 if policy is None else policy.version
        )

    def start(self) -> None:
        """Begins to connect."""
        self._thread.start()

    def flush(self, seconds: float) -> bool:
        """Waits up to `seconds` until the learner has acknowledged all entries committed by now;
        returns whether it has."""
        last = self._journal.next_number - 1
        with self._progress:
            return self._progress.wait_for(lambda: self._acknowledged >= last, seconds)

    def close(self) -> None:
        """Ends the thread; entries that were not sent stay in the journal. A second call does
        nothing."""
        self._closing.set()
        if self._thread.is_alive():
            # A send to a peer that reads nothing fails after `silence`.
            self._thread.join(2.0 * self._config.silence + self._config.connect_seconds)

    def __enter__(self) -> LearnerClient:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _work(self) -> None:
        wait = self._config.wait_first
        while not self._closing.is_set():
            try:
                connection = _connect(self._config, self._token)
                began = time.monotonic()
                try:
                    next_number = self._handshake(connection)
                    self._condition = "connected"
                    self._trouble = ""
                    self._ended = False
                    self._exchange(connection, next_number)
                finally:
                    connection.close()
                    # The delay starts again only after a connection that lasted, so that a learner
                    # that refuses is asked ever less often.
                    if time.monotonic() - began > self._config.wait_longest:
                        wait = self._config.wait_first
            except _RefusedError as error:
                self._note("refused", str(error))
            except ConnectionClosedOK:
                self._ended = True
                self._note("connecting", f"learner {self._config.uri}: has ended")
            except (ConnectionClosed, TimeoutError, OSError) as error:
                self._note(
                    "connecting", f"learner {self._config.uri}: lost ({error or 'no answer'})"
                )
            except HandoffError as error:
                # Only a server of another kind sends messages that cannot be read.
                self._note("refused", str(error))
            except Exception as error:
                LOG.exception("the learner client failed and reconnects")
                self._note("connecting", f"learner client: {type(error).__name__}: {error}")
            self._paused = False
            self._closing.wait(wait)
            wait = min(2.0 * wait, self._config.wait_longest)
        self._condition = "closed"
        self._save_policy(at_once=True)

    def _note(self, condition: Literal["connecting", "refused"], trouble: str) -> None:
        """Sets the state, and logs an error that is new; that a learner which has ended is gone is
        no error."""
        if self._closing.is_set():
            return
        if trouble != self._trouble:
            LOG.log(logging.INFO if self._ended else logging.WARNING, "%s", trouble)
        self._condition = condition
        self._trouble = trouble

    def _handshake(self, connection: ClientConnection) -> int:
        """Introduces the journal; returns the number of the first entry that the learner
        expects."""
        journal = self._journal
        connection.send(encode(Hello(journal.identity, journal.first_number)))
        answer = _decoded(connection.recv(timeout=self._config.connect_seconds))
        if not isinstance(answer, Acknowledgement):
            raise _RefusedError(
                f"learner {self._config.uri}: answered with {type(answer).__name__}, expected Acknowledgement."
            )
        if answer.number >= journal.next_number:
            raise _RefusedError(
                f"journal {journal.folder}: has {journal.next_number} entries, the learner has {answer.number + 1} "
                "of it. Was the folder restored from an older state? Its new steps would be taken for known ones."
            )
        self._acknowledge(answer.number)
        return max(answer.number + 1, journal.first_number)

    def _exchange(self, connection: ClientConnection, number: int) -> None:
        """Sends entries from `number` on, and takes the learner's messages, in turns."""
        journal = self._journal
        while not self._closing.is_set():
            # A few entries, so that parameters are not kept waiting by a long backlog.
            budget = 8
            while (
                budget
                and number < journal.next_number
                and number - self._acknowledged <= self._config.window
            ):
                connection.send(journal.frame(number))
                number += 1
                budget -= 1
            try:
                message = _decoded(connection.recv(timeout=POLL if budget else 0.0))
            except TimeoutError:
                self._save_policy()
                continue
            match message:
                case Acknowledgement():
                    if message.number >= number:
                        raise _RefusedError(
                            f"learner: acknowledged entry {message.number}, but only entries before {number} were sent."
                        )
                    self._acknowledge(message.number)
                case Parameters():
                    self._unsaved = encode(message)
                    self._note_digest(message.version, self._unsaved)
                    self._policy = ActorPolicy(message)
                case Pause():
                    self._paused = message.on

    def _acknowledge(self, number: int) -> None:
        with self._progress:
            self._acknowledged = max(self._acknowledged, number)
            self._progress.notify_all()
        self._journal.drop(self._acknowledged)

    def _save_policy(self, at_once: bool = False) -> None:
        """Writes the newest parameters to disk, at most every `keep_seconds` unless `at_once`."""
        now = time.monotonic()
        if self._unsaved is None or (
            not at_once and now - self._saved_at < self._config.keep_seconds
        ):
            return
        frame = self._unsaved
        self._unsaved = None
        self._saved_at = now
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._file, frame)
        except OSError as error:
            LOG.warning("%s: the newest parameters were not written: %s", self._file, error)

    def _load_policy(self) -> ActorPolicy | None:
        """The policy with the parameters on disk, if there are any."""
        try:
            frame = self._file.read_bytes()
            message = decode(frame)
        except FileNotFoundError:
            return None
        except HandoffError as error:
            LOG.warning("%s: not used: %s", self._file, error)
            return None
        if not isinstance(message, Parameters):
            return None
        self._note_digest(message.version, frame)
        return ActorPolicy(message)

    def _note_digest(self, version: int, frame: bytes) -> None:
        """Keeps the digest of a message with parameters."""
        newest = list(self._digests.items())[1 - KEPT_DIGESTS :]
        self._digests = dict([*newest, (version, hashlib.sha256(frame).hexdigest())])


class _RefusedError(Exception):
    """A learner answers, but does not accept this actor."""


def _decoded(frame: str | bytes) -> Acknowledgement | Parameters | Pause:
    """A message of the learner; a text is an error of the learner."""
    if isinstance(frame, str):
        raise _RefusedError(f"learner: {frame}")
    message = decode(frame)
    if not isinstance(message, Acknowledgement | Parameters | Pause):
        raise _RefusedError(f"learner: sent {type(message).__name__}, which only actors send.")
    return message


def _connect(config: LearnerClientConfig, token: str) -> ClientConnection:
    name = f"learner {config.uri}"
    try:
        connection = connect(
            config.uri,
            additional_headers={"Authorization": f"Api-Key {token}"},
            compression=None,
            max_size=config.largest_frame,
            open_timeout=config.connect_seconds,
            ping_interval=config.silence / 2.0,
            ping_timeout=config.silence,
            close_timeout=1.0,
            proxy=None,
        )
    except InvalidURI:
        raise _RefusedError(f"{name}: not an address such as ws://192.168.1.2:8010.") from None
    except InvalidStatus as error:
        status = error.response.status_code
        cause = (
            "Is the token right?"
            if status == 401
            else "Is it shutting down, or another kind of server?"
        )
        raise _RefusedError(f"{name}: refused the connection with HTTP {status}. {cause}") from None
    except (InvalidHandshake, InvalidMessage, EOFError) as error:
        raise _RefusedError(f"{name}: no websocket there ({error}).") from None
    # A send to a learner that hangs must fail; without this option it waits for ever.
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.socket.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1e3 * config.silence)
        )
    return connection
