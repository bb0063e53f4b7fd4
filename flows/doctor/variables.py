"""Checks environment variables for names that look like Handoff's and that nothing reads."""

from __future__ import annotations

import os
from collections.abc import Mapping

from flows.doctor.check import Check
from robots.errors import suggest

PREFIX = "HANDOFF_"
KNOWN = (
    "HANDOFF_CONSOLE",
    "HANDOFF_DATA",
    "HANDOFF_ENVS",
    "HANDOFF_HOST_NAMES",
    "HANDOFF_KEYS",
    "HANDOFF_KEY_PASSPHRASE",
    "HANDOFF_REQUIRE_ENGINES",
    "HANDOFF_RESULTS_FOLDER",
    "HANDOFF_RESULTS_URL",
    "HANDOFF_TOKEN",
    "HANDOFF_TRACKER_TOKEN",
)
"""Variables that Handoff or its tests read."""


def variables(environment: Mapping[str, str] | None = None) -> Check:
    """Checks the environment variables.

    Args:
        environment: variables by name; None takes those of this process.
    """
    environment = os.environ if environment is None else environment
    given = sorted(name for name in environment if name.startswith(PREFIX))
    unread = [name for name in given if name not in KNOWN]
    if unread:
        found = f"nothing reads {', '.join(unread)}"
        hint = suggest(unread[0], KNOWN)
        return Check("variables", "warning", found, f"{unread[0]}: {hint}")
    return Check("variables", "ok", ", ".join(given) or f"no {PREFIX}*")
