"""The actor's end of the line to the learner: a thread that connects, again and again, sends and
receives."""

from __future__ import annotations

import logging
import socket
import threading
import time
from pathlib import Path
from typing import Literal, NamedTuple

from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidMessage,
    InvalidStatus,
    InvalidURI,
)
from websockets.sync.client import ClientConnection, connect

from real.hil.actor_policy import ActorPolicy
from real.hil.journal import Journal
from robots.config import config
from robots.errors import HandoffError
from robots.storage.durable import write_atomically
from robots.wire.learner import Hello, Parameters, Pause, Taken, decode, encode
from robots.wire.policy import check_token

LOG = logging.getLogger(__name__)
POLICY = "policy.msgpack"
"""File of the newest parameters, as they came."""
POLL = 0.02
"""Longest time between looks at the journal [s]."""


@config
class LinkConfig:
    """Which learner, and how patiently it is looked for."""

    uri: str = "ws://127.0.0.1:8010"
    """ws:// or wss://, host and port. Traffic is not encrypted with ws://: beyond this machine, go through a tunnel."""
    connect_seconds: float = 5.0
    """Limit for one attempt to connect, and for the learner's first answer [s]."""
    wait_first: float = 0.2
    """Time from a lost connection to the first attempt to connect again [s]; doubles up to
    `wait_longest`."""
    wait_longest: float = 5.0
    """[s]."""
    window: int = 64
    """Entries sent ahead of the learner's acknowledgement."""
    silence: float = 10.0
    """Time without an answer to a ping, or with what was sent not taken, after which the connection
    is lost [s]."""
    largest_frame: int = 2**28
    """Bytes of a frame that is taken from the learner."""
    keep_seconds: float = 5.0
    """Least time between two writes of the newest parameters to the disk [s]."""


class LinkState(NamedTuple):
    """How things stand, for displays."""

    condition: Literal["connecting", "connected", "refused", "closed"]
    """`refused`: the learner is there but does not take this token, this task or these steps; tried
    again anyway."""
    trouble: str
    """What last went wrong; empty when connected."""
    waiting: int
    """Committed entries of which it is not known that the learner has them."""
    version: int
    """Of the newest parameters; -1 without any."""


class Link:
    """Runs from `start` to `close`. Nothing in it makes the acting thread wait.

    The newest parameters are kept on the disk, so that a restarted actor can act before its learner
    is back.

    Args:
        journal: whose entries are sent.
        config: see there.
        token: that the learner wants to see.
        keep: folder for the newest parameters; made if missing.

    Raises:
        HandoffError: an unusable token.
    """

    def __init__(self, journal: Journal, config: LinkConfig, token: str, keep: Path) -> None:
        check_token(token)
        self._journal, self._config, self._token = journal, config, token
        self._file = keep / POLICY
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="link", daemon=True)
        self._taken = journal.first_number - 1
        self._progress = threading.Condition()
        self._condition: Literal["connecting", "connected", "refused", "closed"] = "connecting"
        self._trouble = ""
        self._paused = False
        self._unkept: bytes | None = None
        self._kept_at = -float("inf")
        self._policy = self._kept_policy()

    @property
    def policy(self) -> ActorPolicy | None:
        """The newest that arrived, or None."""
        return self._policy

    @property
    def paused(self) -> bool:
        """Whether the learner wants the actor to hold still; a lost connection ends that."""
        return self._paused

    @property
    def state(self) -> LinkState:
        """Now."""
        policy = self._policy
        waiting = self._journal.next_number - 1 - self._taken
        return LinkState(
            self._condition, self._trouble, waiting, -1 if policy is None else policy.version
        )

    def start(self) -> None:
        """Begins to connect."""
        self._thread.start()

    def flush(self, seconds: float) -> bool:
        """Whether all that is committed now is at the learner, after at most that time [s]."""
        last = self._journal.next_number - 1
        with self._progress:
            return self._progress.wait_for(lambda: self._taken >= last, seconds)

    def close(self) -> None:
        """Ends the thread; what is not sent stays in the journal. A second call does nothing."""
        self._closing.set()
        if self._thread.is_alive():
            # A peer that takes nothing is given up after `silence`.
            self._thread.join(2.0 * self._config.silence + self._config.connect_seconds)

    def __enter__(self) -> Link:
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
                    next_number = self._greet(connection)
                    self._condition, self._trouble = "connected", ""
                    self._talk(connection, next_number)
                finally:
                    connection.close()
                    # A learner that greets and refuses is not asked more and more often.
                    if time.monotonic() - began > self._config.wait_longest:
                        wait = self._config.wait_first
            except _RefusedError as error:
                self._tell("refused", str(error))
            except (ConnectionClosed, TimeoutError, OSError) as error:
                self._tell(
                    "connecting", f"learner {self._config.uri}: lost ({error or 'no answer'})"
                )
            except HandoffError as error:
                # A sound learner never sends what cannot be read, so this is as good as a refusal.
                self._tell("refused", str(error))
            except Exception as error:
                LOG.exception("the link failed and begins anew")
                self._tell("connecting", f"link: {type(error).__name__}: {error}")
            self._paused = False
            self._closing.wait(wait)
            wait = min(2.0 * wait, self._config.wait_longest)
        self._condition = "closed"
        self._keep(at_once=True)

    def _tell(self, condition: Literal["connecting", "refused"], trouble: str) -> None:
        if self._closing.is_set():
            return
        if trouble != self._trouble:
            LOG.warning("%s", trouble)
        self._condition, self._trouble = condition, trouble

    def _greet(self, connection: ClientConnection) -> int:
        """Says who is there; returns the number of the first entry that the learner wants."""
        journal = self._journal
        connection.send(encode(Hello(journal.identity, journal.first_number)))
        answer = _understood(connection.recv(timeout=self._config.connect_seconds))
        if not isinstance(answer, Taken):
            raise _RefusedError(
                f"learner {self._config.uri}: answered with {type(answer).__name__}, expected Taken."
            )
        if answer.number >= journal.next_number:
            raise _RefusedError(
                f"journal {journal.folder}: has {journal.next_number} entries, the learner {answer.number + 1} of it. "
                "Was the folder put back to an older state? Its new steps would be taken for known ones."
            )
        self._acknowledge(answer.number)
        return max(answer.number + 1, journal.first_number)

    def _talk(self, connection: ClientConnection, number: int) -> None:
        journal = self._journal
        while not self._closing.is_set():
            budget = 8
            while (
                budget
                and number < journal.next_number
                and number - self._taken <= self._config.window
            ):
                connection.send(journal.frame(number))
                number, budget = number + 1, budget - 1
            try:
                message = _understood(connection.recv(timeout=POLL if budget else 0.0))
            except TimeoutError:
                self._keep()
                continue
            match message:
                case Taken():
                    if message.number >= number:
                        raise _RefusedError(
                            f"learner: has taken entry {message.number}, sent are those before {number}."
                        )
                    self._acknowledge(message.number)
                case Parameters():
                    self._policy = ActorPolicy(message)
                    self._unkept = encode(message)
                case Pause():
                    self._paused = message.on

    def _acknowledge(self, number: int) -> None:
        with self._progress:
            self._taken = max(self._taken, number)
            self._progress.notify_all()
        self._journal.drop(self._taken)

    def _keep(self, at_once: bool = False) -> None:
        """Writes the newest parameters to the disk, now and then."""
        now = time.monotonic()
        if self._unkept is None or (
            not at_once and now - self._kept_at < self._config.keep_seconds
        ):
            return
        frame, self._unkept, self._kept_at = self._unkept, None, now
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._file, frame)
        except OSError as error:
            LOG.warning("%s: the newest parameters were not kept: %s", self._file, error)

    def _kept_policy(self) -> ActorPolicy | None:
        try:
            message = decode(self._file.read_bytes())
        except FileNotFoundError:
            return None
        except HandoffError as error:
            LOG.warning("%s: not used: %s", self._file, error)
            return None
        return ActorPolicy(message) if isinstance(message, Parameters) else None


class _RefusedError(Exception):
    """The learner is there, but does not want what it is sent."""


def _understood(frame: str | bytes) -> Taken | Parameters | Pause:
    if isinstance(frame, str):
        raise _RefusedError(f"learner: {frame}")
    message = decode(frame)
    if not isinstance(message, Taken | Parameters | Pause):
        raise _RefusedError(f"learner: sent {type(message).__name__}, which only actors send.")
    return message


def _connect(config: LinkConfig, token: str) -> ClientConnection:
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
            "Is the token right?" if status == 401 else "Is it stopping, or another kind of server?"
        )
        raise _RefusedError(f"{name}: refused the connection with HTTP {status}. {cause}") from None
    except (InvalidHandshake, InvalidMessage, EOFError) as error:
        raise _RefusedError(f"{name}: no websocket there ({error}).") from None
    # A learner that stands still without closing must not hold a send for ever.
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.socket.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1e3 * config.silence)
        )
    return connection
