"""Makes the environments of one connection, and answers its requests until it is closed."""

from __future__ import annotations

import hashlib
import platform
import socket
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from robots.errors import HandoffError, describe
from robots.interfaces import VecEnv
from sim.processes.env_server import EnvServer
from sim.servers.channel import Arrays, Channel, ClosedChannelError
from sim.servers.engines import EnvRequest, make_requested

PROTOCOL = "handoff-environments/1"
"""Name and version of the protocol."""
ROWS = "rows"
"""Name of the array with the indices of environments in `reset` and `restore`."""
SEEDS = "seeds"
"""Name of the array of seeds in `reset`."""
STARTS = "starts"
"""Name of the array of seeds for environments that end in `steps`."""
STATE = "state/"
"""Prefix of the arrays of a state in `restore`."""
_ROOT = Path(__file__).resolve().parents[2]
_CODE = (
    "sim/servers",
    "sim/engines",
    "sim/engine.py",
    "sim/vec_env.py",
    "sim/processes/env_server.py",
    "sim/processes/shared_memory.py",
    "robots/config.py",
    "robots/interfaces.py",
    "robots/outside.py",
    "robots/spec.py",
    "robots/wire/policy.py",
)
"""Files and folders whose code must be the same on both sides."""


def code_digest() -> str:
    """Digest (hex sha256) of the code that both sides of a server share."""
    digest = hashlib.sha256()
    for entry in _CODE:
        path = _ROOT / entry
        for file in sorted(path.glob("*.py")) if path.is_dir() else [path]:
            digest.update(f"{file.relative_to(_ROOT)}\n".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()


def serve(descriptor: int, kind: str) -> None:
    """Serves one connection; returns when it is closed.

    Args:
        descriptor: file descriptor of the connected socket.
        kind: `shared` for a socket of this machine, `remote` for one of another machine.
    """
    channel = Channel(socket.socket(fileno=descriptor), shared=kind == "shared")
    hello = {"protocol": PROTOCOL, "code": code_digest(), "python": platform.python_version()}
    try:
        channel.send(hello)
        request, _ = channel.receive()
        match request.pop("call", None):
            case "versions":
                channel.send({"versions": versions(request["packages"])})
            case "make":
                _serve_environments(channel, EnvRequest(**request))
    except ClosedChannelError:
        # The client has closed the connection.
        return
    finally:
        channel.close()


def versions(packages: list[str]) -> dict[str, str]:
    """Versions of installed packages; empty for those that are not installed."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = ""
    return found


def specifications(env: VecEnv) -> dict[str, Any]:
    """The specifications of environments as plain values, from which the client makes its own."""
    return {
        "observation_spec": {name: asdict(spec) for name, spec in env.observation_spec.items()},
        "action_spec": asdict(env.action_spec),
        "rate_hz": float(env.rate_hz),
    }


def _serve_environments(channel: Channel, request: EnvRequest) -> None:
    made: list[VecEnv] = []

    def make(num_envs: int) -> VecEnv:
        made.append(make_requested(request._replace(num_envs=num_envs)))
        return made[-1]

    try:
        server = EnvServer(make, [request.num_envs])
    except HandoffError as error:
        channel.send({"answer": "error", "text": str(error)})
        return
    except Exception as error:  # noqa: BLE001  (whatever it is, the client must get it)
        _send_crash(channel, error)
        return
    try:
        channel.send({"answer": "ready", "specifications": specifications(made[0])})
        _answer(server, channel)
    finally:
        server.close()


def _answer(server: EnvServer, channel: Channel) -> None:
    while True:
        message, arrays = channel.receive()
        try:
            result, ended = _respond(server, message, arrays)
        except HandoffError as error:
            channel.send({"answer": "error", "text": str(error)})
        except Exception as error:  # noqa: BLE001  (the client must get it, whatever it is)
            _send_crash(channel, error)
            return
        else:
            channel.send({"answer": "arrays", "ended": ended}, result)


def _respond(
    server: EnvServer, message: Mapping[str, Any], arrays: Arrays
) -> tuple[Mapping[str, np.ndarray], int]:
    """Processes a request, see `EnvServer.respond`."""
    rows = arrays.pop(ROWS).tolist() if ROWS in arrays else None
    match message.get("call"):
        case "steps":
            starts = arrays.pop(STARTS, None)
            argument = None if starts is None else (message["received"], starts.tolist())
            actions = [arrays[str(number)] for number in range(len(arrays))]
            return server.respond(0, "steps", (argument,), actions)
        case "reset":
            return server.respond(0, "reset", (arrays[SEEDS].tolist(), rows), [])
        case "restore":
            state = {name.removeprefix(STATE): array for name, array in arrays.items()}
            return server.respond(0, "restore", (state, rows), [])
        case "save":
            return server.respond(0, "save", (), [])
    raise HandoffError(f"environment server: no request {str(message.get('call'))[:40]!r}.")


def _send_crash(channel: Channel, error: Exception) -> None:
    trace = "".join(traceback.format_exception(error))
    channel.send({"answer": "crash", "text": describe(error), "trace": trace})
