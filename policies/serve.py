"""A policy behind a websocket: observations come in, action chunks go out, and nothing that comes
in can end it.

On the wire it is openpi's policy server (github.com/Physical-Intelligence/openpi, `openpi_client`):
the first frame after the connection is metadata, then each binary frame is an observation, answered
by a binary frame with `actions` and `server_timing`, or by a text frame that says what is wrong;
`GET /healthz` answers 200. In addition a token is required, metadata carries the policy's contract
and its digest, a request may carry its noise, and an error keeps the connection. Pictures are uint8
and stand under their fields' names; what is to be done stands under `prompt`, as there. openpi
counts a chunk's actions from the newest observation on, and so does `actions`; `prediction` is the
whole chunk.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import math
import queue
import secrets
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any, NamedTuple

import numpy as np
from websockets.asyncio.server import Request, Response, ServerConnection
from websockets.asyncio.server import serve as listen
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode

from robots.config import config, to_plain
from robots.contract import Contract
from robots.control.noise import chunk_noise
from robots.errors import HandoffError
from robots.interfaces import Policy, PolicyInput, SeeingPolicy
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
    observed,
    pack,
    unpack,
)

LOG = logging.getLogger(__name__)
OVERHEAD = 65536
"""Bytes of a frame beyond its numbers: names, types and shapes."""
LONGEST_ERROR = 2000
"""Characters of an error frame; a client's own words may be in it."""


@config
class ServeConfig:
    """Where a policy is served, and how much it takes on."""

    host: str = "127.0.0.1"
    """Address to listen on. Traffic is not encrypted: beyond this machine, go through a tunnel or a
    TLS proxy."""
    port: int = 8000
    """TCP port; 0 takes a free one."""
    clients: int = 16
    """Connections at a time; one more is told to come back later."""
    queue: int = 8
    """Requests that wait while one is answered; one more gets an error at once."""
    seed: int = 0
    """Seed of the noise of requests that bring none; they are numbered from 0 on."""
    stop_seconds: float = 5.0
    """How long requests under way may take to finish once the server is asked to stop [s]."""


_Result = tuple[np.ndarray, float] | Exception
"""What becomes of a request: its chunk and the seconds it took, or what the policy raised."""


class _Job(NamedTuple):
    observation: np.ndarray | PolicyInput
    noise: np.ndarray
    done: Callable[[_Result], None]


class _Worker:
    """One thread that runs the policy on one request at a time, behind a bounded queue."""

    def __init__(self, policy: Policy | SeeingPolicy, waiting: int) -> None:
        self._policy = policy
        self._jobs: queue.Queue[_Job] = queue.Queue(max(1, waiting))
        self.pending: set[asyncio.Future[_Result]] = set()
        # A daemon: a policy that hangs must not keep the process from ending.
        threading.Thread(target=self._work, name="policy", daemon=True).start()

    async def run(
        self, observation: np.ndarray | PolicyInput, noise: np.ndarray
    ) -> tuple[np.ndarray, float]:
        """The chunk `(horizon, A)` and the seconds it took.

        Raises:
            HandoffError: the queue is full; or whatever the policy raises.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_Result] = loop.create_future()

        def settle(result: _Result) -> None:
            if not future.done():
                future.set_result(result)

        def done(result: _Result) -> None:
            # A closed loop: the server has stopped without waiting for this answer.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, result)

        try:
            self._jobs.put_nowait(_Job(observation, noise, done))
        except queue.Full:
            raise HandoffError(
                f"server: busy, {self._jobs.maxsize} requests wait already. Ask again later, or serve fewer robots."
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
        """Answers every request under way with an error."""
        for future in list(self.pending):
            if not future.done():
                future.set_result(HandoffError("server: stopped before this request was answered."))

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            begin = time.perf_counter()
            try:
                # A contract with sensors or an instruction comes with a policy that can be shown
                # them.
                chunk = self._policy(job.observation, job.noise)[0]  # type: ignore[arg-type]
                job.done((chunk, time.perf_counter() - begin))
            except Exception as error:  # noqa: BLE001  goes to the one who asked
                job.done(error)


class PolicyServer:
    """Answers observations with chunks until it is stopped.

    Args:
        policy: asked for one row at a time, from one thread.
        contract: of the policy; states what a request must hold.
        config: where, and how much at a time.
        token: that clients must show.

    Raises:
        HandoffError: an unusable token, or a contract with a field that a request uses otherwise.
    """

    def __init__(
        self, policy: Policy | SeeingPolicy, contract: Contract, config: ServeConfig, token: str
    ) -> None:
        fields = contract.observation.keys() | contract.sensors.keys()
        taken = sorted(fields & {NOISE, SEED, CHUNK, *([PROMPT] if contract.instruction else [])})
        if taken:
            raise HandoffError(
                f"serve: observation fields {taken} are names with a meaning of their own in a request."
            )
        check_token(token)
        self._contract, self._config, self._policy = contract, config, policy
        self._credentials = f"Api-Key {token}".encode()
        self._metadata = pack(metadata(contract))
        self._limit = frame_limit(contract)
        self._clients: set[ServerConnection] = set()
        self._chunks = 0
        self._stopping = threading.Event()
        self._wake: Callable[[], object] = lambda: None

    async def run(self, ready: Callable[[int], None] = lambda port: None) -> None:
        """Serves until `stop`, then lets requests under way finish and closes the connections.

        Args:
            ready: told the port once connections are accepted.

        Raises:
            HandoffError: the address or port cannot be had.
        """
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        self._wake = lambda: loop.call_soon_threadsafe(stopped.set)
        self._worker = _Worker(self._policy, self._config.queue)
        handshakes = logging.getLogger(f"{__name__}.handshakes")
        handshakes.setLevel(logging.CRITICAL)  # a port scan is no news, let alone worth a traceback
        try:
            server = await listen(
                self._serve_client,
                self._config.host,
                self._config.port,
                process_request=self._admit,
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
                "Does another server run there?"
            ) from None
        async with server:
            ready(next(iter(server.sockets)).getsockname()[1])
            if not self._stopping.is_set():
                await stopped.wait()
            if self._worker.pending:
                await asyncio.wait(self._worker.pending, timeout=self._config.stop_seconds)
            self._worker.abandon()
            # One turn, so that what has just been answered is sent before the connections close.
            await asyncio.sleep(0)
        self._wake = lambda: None

    def stop(self) -> None:
        """Ends `run`; from any thread."""
        self._stopping.set()
        self._wake()

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        """Answers `/healthz` and turns away who has not the token; None lets the connection
        open."""
        if self._stopping.is_set():
            return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, "stopping\n")
        if request.path == "/healthz":
            return connection.respond(HTTPStatus.OK, "OK\n")
        shown = request.headers.get_all("Authorization")
        if len(shown) == 1 and hmac.compare_digest(
            shown[0].encode("utf-8", "surrogateescape"), self._credentials
        ):
            return None
        response = connection.respond(HTTPStatus.UNAUTHORIZED, "token: missing or wrong\n")
        response.headers["WWW-Authenticate"] = "Api-Key"
        return response

    async def _serve_client(self, connection: ServerConnection) -> None:
        if len(self._clients) >= self._config.clients:
            await connection.close(
                CloseCode.TRY_AGAIN_LATER, f"{self._config.clients} clients are served already"
            )
            return
        self._clients.add(connection)
        total = None
        try:
            # A client that leaves, in whatever way, is the end of its conversation and nothing
            # else.
            with suppress(ConnectionClosed):
                await connection.send(self._metadata)
                async for frame in connection:
                    begin = time.perf_counter()
                    await connection.send(await self._answer(frame, total))
                    total = time.perf_counter() - begin
        finally:
            self._clients.discard(connection)

    async def _answer(self, frame: str | bytes, previous: float | None) -> str | bytes:
        """Bytes of a chunk, or the text of an error."""
        begin = time.perf_counter()
        try:
            if self._stopping.is_set():
                raise HandoffError("server: is stopping and takes no more requests.")
            observation, noise, told = self._read(frame)
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
        return pack({"actions": actions, "prediction": chunk, **told, "server_timing": timing})

    def _read(
        self, frame: str | bytes
    ) -> tuple[np.ndarray | PolicyInput, np.ndarray, dict[str, int | None]]:
        """Observation of one row, noise `(1, H, A)`, and the seed and number the noise was drawn
        from."""
        if isinstance(frame, str):
            raise HandoffError("message: text, expected a binary frame with a msgpack map.")
        request = unpack(frame)
        if not isinstance(request, dict) or not all(isinstance(name, str) for name in request):
            raise HandoffError(
                f"message: {type(request).__name__}, expected a map from the names "
                f"{[*self._contract.observation, *self._contract.sensors]}, as text, to arrays."
            )
        extra = {name: request.pop(name) for name in (NOISE, SEED, CHUNK) if name in request}
        observation = observed(self._contract, request)
        if NOISE in extra:
            if len(extra) > 1:
                raise HandoffError(
                    f"{NOISE}: comes with {SEED} or {CHUNK}, expected one or the other."
                )
            return (
                observation,
                check_noise(self._contract, extra[NOISE])[None],
                {SEED: None, CHUNK: None},
            )
        if extra:
            seed, chunk = (_counter(name, extra.get(name)) for name in (SEED, CHUNK))
        else:
            seed, chunk = self._config.seed, self._chunks
            self._chunks += 1
        noise = chunk_noise(seed, chunk, self._contract.horizon, action_size(self._contract))
        return observation, noise[None], {SEED: seed, CHUNK: chunk}

    def _check_chunk(self, chunk: np.ndarray) -> None:
        expected = (self._contract.horizon, action_size(self._contract))
        if chunk.shape != expected or not np.isfinite(chunk).all():
            raise HandoffError(
                f"policy: chunk of shape {chunk.shape}, all finite: {bool(np.isfinite(chunk).all())}; expected finite "
                f"{expected}. Is the observation far outside the training data?"
            )


def serve(
    policy: Policy | SeeingPolicy,
    contract: Contract,
    config: ServeConfig,
    token: str,
    ready: Callable[[int], None] = lambda port: None,
) -> None:
    """Serves until SIGTERM or SIGINT; arguments and errors of `PolicyServer` and its `run`. Main
    thread only."""
    server = PolicyServer(policy, contract, config, token)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, server.stop)
        await server.run(ready)

    asyncio.run(run())


def choose_token(host: str, given: str | None) -> str:
    """The token to serve with: the given one, or on this machine's own addresses a new one.

    Raises:
        HandoffError: none is given though others can reach `host`, or it is too short or not fit
            for an HTTP header.
    """
    if given is None and not is_loopback(host):
        raise HandoffError(
            f"serve: {host} can be reached from other machines, so a token must be given; only on 127.0.0.1, ::1 and "
            "localhost one is made up."
        )
    token = secrets.token_urlsafe(32) if given is None else given
    check_token(token)
    return token


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def metadata(contract: Contract) -> dict[str, Any]:
    """What a client is told first: protocol, contract (observation and action specs, rate, steps)
    and its digest."""
    return {
        "protocol": PROTOCOL,
        "contract": to_plain(contract),
        "digest": contract_digest(contract),
    }


def frame_limit(contract: Contract) -> int:
    """Bytes of the largest sensible request: all its numbers, those of pictures too, as float64,
    and names."""
    seen = contract.observation_size + sum(
        math.prod(spec.shape) for spec in contract.sensors.values()
    )
    entries = contract.n_obs_steps * seen + contract.horizon * action_size(contract)
    return OVERHEAD + 8 * entries


def _counter(name: str, value: Any) -> int:
    if isinstance(value, np.integer):
        value = int(value)
    if type(value) is not int or not 0 <= value < 2**64:
        raise HandoffError(
            f"{name}: is {str(value)[:40]}, expected an integer from 0 to 2^64 - 1; {SEED} and {CHUNK} come together."
        )
    return value
