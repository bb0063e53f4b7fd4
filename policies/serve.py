"""Serves a policy over a websocket: observations in, action chunks out. Invalid requests are
answered with an error and never stop the server.

The protocol is that of openpi's policy server (github.com/Physical-Intelligence/openpi,
`openpi_client`): the first frame after the connection is metadata, then each binary frame is an
observation, answered by a binary frame with `actions` and `server_timing`, or by a text frame with
an error message; `GET /healthz` answers 200. Differences: a token is required, metadata carry the
policy's contract and its digest, a request may carry its noise, and an error keeps the connection
open. Images are uint8 under their fields' names; the instruction is under `prompt`. Nested maps,
names that begin with `observation/`, images of other sizes and a prompt that the policy does not
read are adapted (`robots.wire.adapt`), so that openpi's own robot programs connect as they are; the
token is also taken as the password of the address, `ws://robot:TOKEN@HOST`. As in openpi, `actions`
starts at the newest observation; `prediction` is the whole chunk.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import logging
import math
import queue
import secrets
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import field
from http import HTTPStatus
from typing import Any, NamedTuple

import numpy as np
from websockets.asyncio.server import Request, Response, ServerConnection
from websockets.asyncio.server import serve as listen
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode

from robots.config import Count, Delay, Port, Seed, config, to_plain
from robots.contract import Contract
from robots.control.noise import chunk_noise
from robots.errors import HandoffError
from robots.interfaces import MultimodalPolicy, Policy, PolicyInput
from robots.wire.adapt import LARGEST_IMAGE, RequestAdapter
from robots.wire.addresses import is_loopback
from robots.wire.policy import (
    CHUNK,
    NOISE,
    PROMPT,
    PROTOCOL,
    SEED,
    action_size,
    check_noise,
    check_token,
    contract_digest,
    pack,
    read_observation,
    unpack,
)

LOG = logging.getLogger(__name__)
OVERHEAD = 65536
"""Bytes of a frame in addition to its numbers: names, types and shapes."""
NOTES = "notes"
"""Entry of an answer: what the server ignored in the request."""
LONGEST_ERROR = 2000
"""Maximum characters of an error frame, which may quote the request."""


@config
class ServeConfig:
    """Address and limits of a policy server."""

    host: str = "127.0.0.1"
    """Address to listen on. Traffic is not encrypted: use a tunnel or a TLS proxy to serve other
    machines."""
    port: Port = 8000
    """TCP port; 0 chooses a free one."""
    clients: Count = 16
    """Maximum number of connections; further ones are closed with `TRY_AGAIN_LATER`."""
    queue: Count = 8
    """Maximum number of queued requests; further ones get an error immediately."""
    seed: Seed = 0
    """Seed of the noise of requests without noise, which are numbered from 0."""
    names: dict[str, str] = field(default_factory=dict)
    """Names in requests and the fields that they mean; an empty field ignores the name."""
    stop_seconds: Delay = 5.0
    """Time for pending requests to finish after the server is asked to stop [s]."""


_Result = tuple[np.ndarray, float] | Exception
"""Result of a request: its chunk and the inference time [s], or the exception that the policy
raised."""


class _Job(NamedTuple):
    observation: np.ndarray | PolicyInput
    noise: np.ndarray
    done: Callable[[_Result], None]


class _Worker:
    """One thread that runs the policy on one request at a time, behind a bounded queue."""

    def __init__(self, policy: Policy | MultimodalPolicy, waiting: int) -> None:
        self._policy = policy
        self._jobs: queue.Queue[_Job] = queue.Queue(max(1, waiting))
        self.pending: set[asyncio.Future[_Result]] = set()
        # A daemon thread, so that a hanging policy does not block the exit of the process.
        threading.Thread(target=self._work, name="policy", daemon=True).start()

    async def run(
        self, observation: np.ndarray | PolicyInput, noise: np.ndarray
    ) -> tuple[np.ndarray, float]:
        """The chunk `(horizon, A)` and the inference time [s].

        Raises:
            HandoffError: the queue is full; or whatever the policy raises.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_Result] = loop.create_future()

        def settle(result: _Result) -> None:
            if not future.done():
                future.set_result(result)

        def done(result: _Result) -> None:
            # The loop is closed when the server stopped without waiting for this result.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, result)

        try:
            self._jobs.put_nowait(_Job(observation, noise, done))
        except queue.Full:
            raise HandoffError(
                f"server: busy, {self._jobs.maxsize} requests are queued. Retry later, or serve fewer robots."
            ) from None
        self.pending.add(future)
        try:
            result = await future
        finally:
            self.pending.discard(future)
        if isinstance(result, Exception):
            raise result
        return result

    def abandon(self) -> None:
        """Answers every pending request with an error."""
        for future in list(self.pending):
            if not future.done():
                future.set_result(HandoffError("server: stopped before this request was answered."))

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            begin = time.perf_counter()
            try:
                # A contract with sensors or an instruction belongs to a policy that accepts them.
                chunk = self._policy(job.observation, job.noise)[0]  # type: ignore[arg-type]
                job.done((chunk, time.perf_counter() - begin))
            except Exception as error:  # noqa: BLE001  returned to the client
                job.done(error)


class PolicyServer:
    """Answers observations with chunks until it is stopped.

    Args:
        policy: called with one row at a time, from one thread.
        contract: contract of the policy; defines the fields of a request.
        config: address and limits.
        token: token that clients must send.

    Raises:
        HandoffError: an invalid token, or a contract with a field whose name is reserved in
            requests.
    """

    def __init__(
        self, policy: Policy | MultimodalPolicy, contract: Contract, config: ServeConfig, token: str
    ) -> None:
        fields = contract.observation.keys() | contract.sensors.keys()
        reserved = sorted(
            fields & {NOISE, SEED, CHUNK, *([PROMPT] if contract.instruction else [])}
        )
        if reserved:
            raise HandoffError(
                f"serve: observation fields {reserved} have names that are reserved in requests. Rename them."
            )
        check_token(token)
        self._contract = contract
        self._config = config
        self._policy = policy
        self._credentials = f"Api-Key {token}".encode()
        self._token = token.encode()
        self._adapter = RequestAdapter(contract, config.names)
        self._metadata = pack(metadata(contract))
        self._limit = frame_limit(contract)
        self._clients: set[ServerConnection] = set()
        self._chunks = 0
        self._stopping = threading.Event()
        self._wake: Callable[[], object] = lambda: None

    async def run(self, ready: Callable[[int], None] = lambda port: None) -> None:
        """Serves until `stop`, then finishes pending requests and closes the connections.

        Args:
            ready: called with the port once connections are accepted.

        Raises:
            HandoffError: the address or port is not available.
        """
        # Start the worker and listen.
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        self._wake = lambda: loop.call_soon_threadsafe(stopped.set)
        self._worker = _Worker(self._policy, self._config.queue)
        handshakes = logging.getLogger(f"{__name__}.handshakes")
        handshakes.setLevel(logging.CRITICAL)  # port scans would log tracebacks
        try:
            server = await listen(
                self._serve_client,
                self._config.host,
                self._config.port,
                process_request=self._admit,
                # Programs send no origin; a page of any site does.
                origins=[None],
                compression=None,
                max_size=self._limit,
                max_queue=2,
                close_timeout=self._config.stop_seconds,
                server_header=None,
                logger=handshakes,
            )
        except OSError as error:
            raise HandoffError(
                f"serve: cannot listen on {self._config.host} port {self._config.port} ({error.strerror or error}). "
                "Is another server running there?"
            ) from None
        # Serve until stopped, then finish pending requests.
        async with server:
            ready(next(iter(server.sockets)).getsockname()[1])
            if not self._stopping.is_set():
                await stopped.wait()
            if self._worker.pending:
                await asyncio.wait(self._worker.pending, timeout=self._config.stop_seconds)
            self._worker.abandon()
            # Yields once, so that answers are sent before the connections close.
            await asyncio.sleep(0)
        self._wake = lambda: None

    def stop(self) -> None:
        """Ends `run`; may be called from any thread."""
        self._stopping.set()
        self._wake()

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        """Answers `/healthz` and rejects requests without the token; None accepts the
        connection."""
        if self._stopping.is_set():
            return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, "stopping\n")
        if request.path == "/healthz":
            return connection.respond(HTTPStatus.OK, "OK\n")
        tokens = request.headers.get_all("Authorization")
        if len(tokens) == 1 and self._is_token(tokens[0].encode("utf-8", "surrogateescape")):
            return None
        response = connection.respond(HTTPStatus.UNAUTHORIZED, "token: missing or wrong\n")
        response.headers["WWW-Authenticate"] = "Api-Key"
        return response

    def _is_token(self, authorization: bytes) -> bool:
        """Whether a header holds the token, as a key or as the password of any name."""
        scheme, _, credentials = authorization.partition(b" ")
        if scheme.lower() != b"basic":
            return hmac.compare_digest(authorization, self._credentials)
        try:
            _, _, password = base64.b64decode(credentials, validate=True).partition(b":")
        except ValueError:
            return False
        return hmac.compare_digest(password, self._token)

    async def _serve_client(self, connection: ServerConnection) -> None:
        if len(self._clients) >= self._config.clients:
            await connection.close(
                CloseCode.TRY_AGAIN_LATER, f"{self._config.clients} clients are served already"
            )
            return
        self._clients.add(connection)
        total = None
        try:
            # A client that disconnects ends its own connection only.
            with suppress(ConnectionClosed):
                await connection.send(self._metadata)
                async for frame in connection:
                    begin = time.perf_counter()
                    await connection.send(await self._answer(frame, total))
                    total = time.perf_counter() - begin
        finally:
            self._clients.discard(connection)

    async def _answer(self, frame: str | bytes, previous: float | None) -> str | bytes:
        """The frame with the chunk, or the text of an error."""
        begin = time.perf_counter()
        try:
            if self._stopping.is_set():
                raise HandoffError("server: is stopping and accepts no more requests.")
            observation, noise, about = self._read(frame)
            chunk, seconds = await self._worker.run(observation, noise)
            self._check_chunk(chunk)
        except HandoffError as error:
            return str(error)[:LONGEST_ERROR]
        except Exception as error:
            LOG.exception("the policy failed")
            return f"policy: failed with {type(error).__name__}: {error}"[:LONGEST_ERROR]
        timing = {
            "infer_ms": 1e3 * seconds,
            "wait_ms": 1e3 * (time.perf_counter() - begin - seconds),
        }
        if previous is not None:
            timing["prev_total_ms"] = 1e3 * previous
        actions = chunk[self._contract.n_obs_steps - 1 :]
        return pack({"actions": actions, "prediction": chunk, **about, "server_timing": timing})

    def _read(
        self, frame: str | bytes
    ) -> tuple[np.ndarray | PolicyInput, np.ndarray, dict[str, Any]]:
        """Observation of one row, noise `(1, H, A)`, and what the answer states: the seed and chunk
        number of the noise, and notes about what was ignored."""
        if isinstance(frame, str):
            raise HandoffError("message: text, expected a binary frame with a msgpack map.")
        request = unpack(frame)
        if not isinstance(request, dict) or not all(isinstance(name, str) for name in request):
            raise HandoffError(
                f"message: {type(request).__name__}, expected a map from the names "
                f"{[*self._contract.observation, *self._contract.sensors]}, as text, to arrays."
            )
        extra = {name: request.pop(name) for name in (NOISE, SEED, CHUNK) if name in request}
        adapted, notes = self._adapter.adapt(request)
        observation = read_observation(self._contract, adapted)
        about = {NOTES: notes} if notes else {}
        if NOISE in extra:
            if len(extra) > 1:
                raise HandoffError(
                    f"{NOISE}: comes with {SEED} or {CHUNK}, expected one or the other."
                )
            return (
                observation,
                check_noise(self._contract, extra[NOISE])[None],
                {SEED: None, CHUNK: None, **about},
            )
        if extra:
            seed, chunk = (_counter(name, extra.get(name)) for name in (SEED, CHUNK))
        else:
            seed, chunk = self._config.seed, self._chunks
            self._chunks += 1
        noise = chunk_noise(seed, chunk, self._contract.horizon, action_size(self._contract))
        return observation, noise[None], {SEED: seed, CHUNK: chunk, **about}

    def _check_chunk(self, chunk: np.ndarray) -> None:
        expected = (self._contract.horizon, action_size(self._contract))
        if chunk.shape != expected or not np.isfinite(chunk).all():
            raise HandoffError(
                f"policy: chunk of shape {chunk.shape}, all finite: {bool(np.isfinite(chunk).all())}; expected finite "
                f"{expected}. Is the observation far outside the training data?"
            )


def serve(
    policy: Policy | MultimodalPolicy,
    contract: Contract,
    config: ServeConfig,
    token: str,
    ready: Callable[[int], None] = lambda port: None,
) -> None:
    """Serves until SIGTERM or SIGINT. Must run in the main thread; arguments and errors are those
    of `PolicyServer` and its `run`."""
    server = PolicyServer(policy, contract, config, token)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, server.stop)
        await server.run(ready)

    asyncio.run(run())


def choose_token(host: str, given: str | None) -> str:
    """The given token, or a new random one if `host` is a loopback address.

    Raises:
        HandoffError: no token is given though other machines can reach `host`, or the token is too
            short or invalid in an HTTP header.
    """
    if given is None and not is_loopback(host):
        raise HandoffError(
            f"serve: {host} can be reached from other machines, so a token must be given; only on 127.0.0.1, ::1 and "
            "localhost one is generated."
        )
    token = secrets.token_urlsafe(32) if given is None else given
    check_token(token)
    return token


def metadata(contract: Contract) -> dict[str, Any]:
    """First message to a client: protocol, contract (observation and action specs, rate, steps) and
    its digest."""
    return {
        "protocol": PROTOCOL,
        "contract": to_plain(contract),
        "digest": contract_digest(contract),
    }


def frame_limit(contract: Contract) -> int:
    """Maximum bytes of a request: all its numbers, including pixels, as float64, plus names."""
    entries_per_step = contract.observation_size + sum(
        math.prod(spec.shape) for spec in contract.sensors.values()
    )
    entries = contract.n_obs_steps * entries_per_step + contract.horizon * action_size(contract)
    # An image may be larger than the policy's, which is then made smaller.
    images = [spec for spec in contract.sensors.values() if spec.unit == "u8"]
    pixels = contract.n_obs_steps * len(images) * LARGEST_IMAGE
    return OVERHEAD + max(8 * entries, 3 * pixels + 8 * contract.observation_size)


def _counter(name: str, value: Any) -> int:
    if isinstance(value, np.integer):
        value = int(value)
    if type(value) is not int or not 0 <= value < 2**64:
        raise HandoffError(
            f"{name}: is {str(value)[:40]}, expected an integer from 0 to 2^64 - 1; {SEED} and {CHUNK} come together."
        )
    return value
