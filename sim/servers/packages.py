"""Reads the versions of packages on the side of an environment server."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from functools import cache

from robots.errors import HandoffError
from sim.servers.client import EnvServerClient, addresses
from sim.servers.config import ServerConfig
from sim.servers.venvs import check_place, server_python


def installed_versions(config: ServerConfig, packages: Sequence[str]) -> dict[str, str]:
    """Versions of installed packages on the other side; empty for those that are not installed.

    Args:
        config: place of the server.
        packages: names of distributions; `handoff` is that of this side, whose code runs there.

    Raises:
        HandoffError: no such virtual environment or Python, another machine does not answer, or
            several have different versions.
    """
    check_place(config)
    others = tuple(package for package in packages if package != "handoff")
    if config.address:
        return _same_versions(addresses(config), others) if others else {}
    known = dict(_asked_versions(server_python(config))) if others else {}
    return {package: known.get(_normalised(package), "") for package in others}


@cache
def _asked_versions(python: str) -> tuple[tuple[str, str], ...]:
    """Names and versions of all packages that a Python can import."""
    code = (
        "import json, importlib.metadata as m\n"
        "print(json.dumps([[d.metadata['Name'], d.version] for d in m.distributions()]))"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        answer = subprocess.run(
            [python, "-s", "-c", code],
            capture_output=True,
            text=True,
            timeout=60.0,
            check=True,
            env=environment,
        ).stdout
        return tuple((_normalised(name), number) for name, number in json.loads(answer))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise HandoffError(
            f"environment server: {python} does not list its packages ({error})."
        ) from None


def _same_versions(places: Sequence[str], packages: tuple[str, ...]) -> dict[str, str]:
    """The versions that all machines have; results would depend on the machine otherwise."""
    first, *others = [_remote_versions(place, packages) for place in places]
    for place, versions in zip(places[1:], others, strict=True):
        differ = [name for name in packages if versions[name] != first[name]]
        if differ:
            there = ", ".join(f"{name} {versions[name] or 'none'}" for name in differ)
            here = ", ".join(f"{name} {first[name] or 'none'}" for name in differ)
            raise HandoffError(
                f"environment server {place}: it has {there}, and {places[0]} has {here}. Install the same versions."
            )
    return first


@cache
def _remote_versions(address: str, packages: tuple[str, ...]) -> dict[str, str]:
    client = EnvServerClient(f"environment server {address}", ServerConfig(address=address))
    try:
        return client.versions(list(packages))
    finally:
        client.close()


def _normalised(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")
