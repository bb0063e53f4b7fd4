"""Runs a policy in another process or on another machine, over a websocket; `policies/serve.py` is
the server."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidMessage,
    InvalidStatus,
    InvalidURI,
)
from websockets.sync.client import ClientConnection, connect

from robots.config import Seconds, config
from robots.contract import PREFIX_INPUT, Contract
from robots.errors import HandoffError, SafetyError
from robots.interfaces import PolicyInput
from robots.wire.policy import (
    NOISE,
    PROMPT,
    PROTOCOL,
    action_size,
    check_noise,
    check_prefix,
    check_token,
    contract_digest,
    pack,
    split_fields,
    unpack,
)

LARGEST_ANSWER = 2**24
"""Largest size of a message from a server [bytes]."""


@config
class RemoteConfig:
    """Address of the server and time limits."""

    uri: str = "ws://127.0.0.1:8000"
    """Address of the server: ws:// or wss://, host and port."""
    connect_seconds: Seconds = 10.0
    """Time limit for the connection, and for the server's metadata [s]."""
    answer_seconds: Seconds = 5.0
    """Time limit for one chunk [s]; on a moving arm the loop's own watchdog is far quicker."""


class RemotePolicy:
    """A `robots.interfaces.MultimodalPolicy` whose chunks come from a server; `contract` is the
    server's.

    After a lost connection or a late answer it stays closed, so that a late answer is never taken
    for the answer to the next request. Requests are sent one at a time; calls from several threads
    wait for each other.

    Args:
        config: address and time limits.
        token: token that the server expects.
        expected: contract that the server's must equal; None accepts any.

    Raises:
        HandoffError: no server at the address, a token that is unusable or refused, or another
            protocol or contract.
    """

    def __init__(self, config: RemoteConfig, token: str, expected: Contract | None = None) -> None:
        check_token(token)
        self.config = config
        self._lock = threading.Lock()
        self._connection = _connect(config, token)
        try:
            self.contract = self._handshake()
            if expected is not None and contract_digest(expected) != contract_digest(self.contract):
                raise HandoffError(
                    f"{self._name}: serves policy {self.contract.policy[:12]} of task {self.contract.task}, expected "
                    f"{expected.policy[:12]} of {expected.task} with the same contract. Does another server run there?"
                )
        except BaseException:
            self.close()
            raise

    def __call__(self, observation: np.ndarray | PolicyInput, noise: np.ndarray) -> np.ndarray:
        """Predicts one chunk per row, with one request each.

        Args:
            observation: `(B, n_obs_steps, O)` in the contract's units, newest last; a
                `PolicyInput` for a policy with sensors or instructions.
            noise: `(B, horizon, A)`, standard normal.

        Returns:
            `(B, horizon, A)` in the contract's units.

        Raises:
            HandoffError: inputs of the wrong shape, an error of the server, a lost connection or a
                late answer.
            SafetyError: a non-finite answer.
        """
        contract = self.contract
        given = observation if isinstance(observation, PolicyInput) else PolicyInput(observation)
        self._check(given, len(noise))
        chunks = []
        for row, row_noise in enumerate(noise):
            request: dict[str, Any] = {**split_fields(contract, given.vector[row])}
            request |= {name: given.sensors[name][row] for name in contract.sensors}
            if given.instructions:
                request[PROMPT] = given.instructions[row]
            if given.prefix is not None:
                request[PREFIX_INPUT] = check_prefix(contract, given.prefix[row])
            request[NOISE] = check_noise(contract, row_noise)
            chunks.append(self._request(request))
        return (
            np.stack(chunks)
            if chunks
            else np.zeros((0, contract.horizon, action_size(contract)), np.float32)
        )

    def _check(self, given: PolicyInput, rows: int) -> None:
        contract = self.contract
        shape = (rows, contract.n_obs_steps, contract.observation_size)
        if given.vector.shape != shape:
            raise HandoffError(
                f"policy: observation has shape {given.vector.shape}, expected {shape}, a row per noise row."
            )
        missing = sorted(contract.sensors.keys() - given.sensors.keys())
        if missing:
            raise HandoffError(
                f"{self._name}: its policy has the sensors {sorted(contract.sensors)}, the observation lacks {missing}."
            )
        if given.prefix is not None and not contract.prefix:
            raise HandoffError(f"{self._name}: got decided actions, but its policy takes none.")
        if given.instructions and not contract.instruction:
            raise HandoffError(
                f"{self._name}: got the instruction '{given.instructions[0]}', but its policy is not "
                "language-conditioned."
            )

    def close(self) -> None:
        """Closes the connection, from any thread; a call that waits for an answer fails at once."""
        self._connection.close()

    def __enter__(self) -> RemotePolicy:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def _name(self) -> str:
        return f"policy server {self.config.uri}"

    def _handshake(self) -> Contract:
        frame = self._receive(self.config.connect_seconds)
        metadata = unpack(frame) if isinstance(frame, bytes) else None
        protocol = metadata.get("protocol") if isinstance(metadata, dict) else None
        if (
            not isinstance(metadata, dict)
            or protocol != PROTOCOL
            or not isinstance(metadata.get("contract"), dict)
        ):
            raise HandoffError(
                f"{self._name}: has protocol {protocol!r}, expected {PROTOCOL!r}. Is it another server?"
            )
        contract = Contract.from_plain(metadata["contract"])
        if metadata.get("digest") != contract_digest(contract):
            raise HandoffError(
                f"{self._name}: its contract does not match its digest. Is it another version?"
            )
        return contract

    def _request(self, request: dict[str, Any]) -> np.ndarray:
        with self._lock:
            try:
                self._connection.send(pack(request))
            except ConnectionClosed as error:
                raise self._lost(error) from None
            frame = self._receive(self.config.answer_seconds)
        if isinstance(frame, str):
            raise HandoffError(f"{self._name}: {frame}")
        answer = unpack(frame)
        chunk = answer.get("prediction") if isinstance(answer, dict) else None
        shape = (self.contract.horizon, action_size(self.contract))
        if not isinstance(chunk, np.ndarray) or chunk.shape != shape or chunk.dtype.kind != "f":
            raise HandoffError(f"{self._name}: its answer has no 'prediction' of shape {shape}.")
        if not np.isfinite(chunk).all():
            raise SafetyError(
                f"{self._name}: a predicted action is not finite, expected finite {shape}."
            )
        return chunk

    def _receive(self, seconds: float) -> str | bytes:
        try:
            return self._connection.recv(timeout=seconds)
        except TimeoutError:
            self.close()
            raise HandoffError(
                f"{self._name}: no answer within {seconds} s; the connection is closed. Is the server overloaded?"
            ) from None
        except ConnectionClosed as error:
            raise self._lost(error) from None

    def _lost(self, error: ConnectionClosed) -> HandoffError:
        reason = error.rcvd.reason or error.rcvd.code if error.rcvd else "without a closing message"
        return HandoffError(
            f"{self._name}: the connection is closed ({reason}). Was the server stopped?"
        )


def _connect(config: RemoteConfig, token: str) -> ClientConnection:
    name = f"policy server {config.uri}"
    try:
        return connect(
            config.uri,
            additional_headers={"Authorization": f"Api-Key {token}"},
            compression=None,
            max_size=LARGEST_ANSWER,
            open_timeout=config.connect_seconds,
            close_timeout=1.0,
            proxy=None,
        )
    except InvalidURI:
        raise HandoffError(f"{name}: not an address such as ws://192.168.1.2:8000.") from None
    except InvalidStatus as error:
        status = error.response.status_code
        cause = (
            "Is the token right?"
            if status == 401
            else "Is it shutting down, or another kind of server?"
        )
        raise HandoffError(f"{name}: refused the connection with HTTP {status}. {cause}") from None
    except (OSError, InvalidHandshake, InvalidMessage, EOFError) as error:
        raise HandoffError(
            f"{name}: cannot be reached ({error}). Is it running at this address?"
        ) from None
