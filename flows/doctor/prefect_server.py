"""Checks the Prefect server that this machine is configured for.

The settings and the server are read without Prefect, whose import takes a second: the environment,
the active profile in `$PREFECT_HOME/profiles.toml`, and three requests of the server's REST API.
"""

from __future__ import annotations

import base64
import json
import os
import tomllib
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from flows.doctor.check import Check

URL = "PREFECT_API_URL"
TIMEOUT_SECONDS = 2.0
"""Longest time without an answer of the server [s]."""


def prefect(environment: Mapping[str, str] | None = None, client: str | None = None) -> Check:
    """Checks whether the configured server answers, and compares its version with the client's.

    Args:
        environment: environment variables; None takes those of this process.
        client: version of the installed Prefect; None looks it up.
    """
    environment = os.environ if environment is None else environment
    try:
        client = version("prefect") if client is None else client
    except PackageNotFoundError:
        return Check("Prefect", "not checked", "prefect is not installed")
    url = setting(URL, environment)
    if not url:
        found = f"{client}; {URL} is not set, so `handoff run` starts a server for each run"
        return Check("Prefect", "ok", found)
    headers = _authorisation(environment)
    try:
        server = str(_ask(f"{url.rstrip('/')}/admin/version", headers))
        pools = len(_ask(f"{url.rstrip('/')}/work_pools/filter", headers, {}))
    except (OSError, HTTPException, ValueError, TypeError) as error:
        reason = f"{error.code} {error.reason}" if isinstance(error, HTTPError) else str(error)
        advice = f"Give `prefect server start`, or unset {URL}; every run fails until then."
        found = f"no Prefect server answers at {url} ({reason})"
        return Check("Prefect", "failed", found, advice)
    counted = "no work pool, which deployments need" if pools == 0 else f"{pools} work pools"
    counted = "1 work pool" if pools == 1 else counted
    found = f"server {server} at {url}, client {client}, {counted}"
    if server == client:
        return Check("Prefect", "ok", found, values={"work_pools": pools})
    advice = f"Give the server's environment `pip install prefect=={client}`."
    return Check("Prefect", "warning", found, advice, values={"work_pools": pools})


def setting(name: str, environment: Mapping[str, str]) -> str | None:
    """Returns a setting of Prefect: that of the environment, else of the active profile."""
    if environment.get(name):
        return environment[name]
    home = environment.get("PREFECT_HOME") or "~/.prefect"
    try:
        content = tomllib.loads(Path(home).expanduser().joinpath("profiles.toml").read_text())
    except (OSError, ValueError):
        return None
    active = environment.get("PREFECT_PROFILE") or content.get("active")
    value = content.get("profiles", {}).get(active, {}).get(name)
    return None if value is None else str(value)


def _authorisation(environment: Mapping[str, str]) -> dict[str, str]:
    """Headers for a server with a password, or for Prefect Cloud."""
    if key := setting("PREFECT_API_KEY", environment):
        return {"Authorization": f"Bearer {key}"}
    if words := setting("PREFECT_API_AUTH_STRING", environment):
        return {"Authorization": f"Basic {base64.b64encode(words.encode()).decode()}"}
    return {}


def _ask(url: str, headers: Mapping[str, str], body: Any = None) -> Any:
    """Answer to a request, which has a body if it is a POST."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        url, data, headers={"Content-Type": "application/json", **headers}
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
        return json.loads(answer.read())
