"""Holds an arm against all other users: those of this computer by the arm's slot, those of other
computers by a concurrency limit of the Prefect server, if one is configured.

The process that moves the arm takes both, not that of the flow: the holder then ends neither before
the arm rests nor after. An arm at a loopback address has no users on other computers.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from importlib.util import find_spec
from typing import Any

from real.franka.slot import is_on_this_computer, robot_address, robot_slot
from robots.errors import HandoffError
from robots.interfaces import Progress, no_progress

LOG = logging.getLogger(__name__)
LEASE_SECONDS = 300.0
"""Time after which the server frees the limit of a holder that has crashed [s]; a running holder
renews its lease after three quarters of it."""
POLL_SECONDS = 2.0
"""Time between two attempts to take a limit [s]."""
LOCKED = 423
"""Status of the server's answer if all slots of a limit are taken."""


@contextmanager
def held_arm(
    host: str,
    robot: str,
    *,
    name: str = "",
    patience: float = 0.0,
    progress: Progress = no_progress,
) -> Iterator[None]:
    """Holds the arm at `host` while the context lasts.

    Args:
        host: name or address of the robot's control, or of its twin.
        robot: name of the robot, for messages.
        name: name of the arm among all computers of the Prefect server; empty takes the address.
        patience: time to wait for another holder, on this computer and then on others [s].
        progress: called with a note while it waits.

    Raises:
        HandoffError: the arm is in use, or the Prefect server does not answer.
    """
    with robot_slot(host, robot, patience=patience, progress=progress):
        server = None if is_on_this_computer(host) else prefect_server()
        limit = f"robot-{name or robot_address(host)}"
        held: AbstractContextManager[None] = nullcontext()
        if server is not None:
            held = robot_limit(limit, server, f"{robot} at {host}", patience, progress)
        with held:
            yield


def prefect_server() -> str | None:
    """The address of the configured Prefect server; None without one."""
    if find_spec("prefect") is None:
        return os.environ.get("PREFECT_API_URL") or None
    from prefect.settings import PREFECT_API_URL

    return PREFECT_API_URL.value() or None


@contextmanager
def robot_limit(
    limit: str, server: str, arm: str, patience: float, progress: Progress
) -> Iterator[None]:
    """Holds a concurrency limit of one slot while the context lasts; creates a missing one.

    A lease that cannot be renewed or released is logged and nothing else: an error in the middle of
    a motion would be worse than a second holder, whom the robot itself refuses as long as this one
    is connected.

    Args:
        limit: name of the limit.
        server: address of the server, for messages.
        arm: the arm, for messages.
        patience: time to wait for another holder [s].
        progress: called with a note while it waits.

    Raises:
        HandoffError: the limit is taken or is not one of one slot, or the server does not answer.
    """
    if find_spec("prefect") is None:
        raise HandoffError(
            f"{arm}: PREFECT_API_URL is {server}, but Prefect is not installed, so the limit {limit} cannot be "
            "taken. Install it (pip install 'prefect>=3.8,<3.9'), or unset PREFECT_API_URL if nobody else uses the arm."
        )
    _require_limit(limit, server, arm, progress)
    # Shown although `handoff run` quiets Prefect: the renewal of a lease reports here.
    logging.getLogger("prefect.concurrency").setLevel(logging.WARNING)
    lease = _take(limit, server, arm, time.monotonic() + patience, progress)
    try:
        yield
    finally:
        try:
            # Without the error that ended the block, so that it is not replaced by one of Prefect.
            lease.__exit__(None, None, None)
        except Exception as error:  # noqa: BLE001  the arm rests already
            LOG.warning(
                "%s: the limit %s could not be freed (%s); it ends by itself within %g s",
                arm,
                limit,
                error,
                LEASE_SECONDS,
            )


def _require_limit(limit: str, server: str, arm: str, progress: Progress) -> None:
    """Creates the limit if it does not exist, and checks that it has one slot."""
    import httpx
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
    from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound

    try:
        with get_client(sync_client=True) as client:
            try:
                found = client.read_global_concurrency_limit_by_name(limit)
            except ObjectNotFound:
                # Another computer may create it at the same moment.
                with suppress(ObjectAlreadyExists):
                    new = GlobalConcurrencyLimitCreate(name=limit, limit=1)
                    client.create_global_concurrency_limit(new)
                progress(0, 1, f"created the limit {limit} of one holder at {server}")
                return
    except httpx.HTTPError as error:
        raise HandoffError(
            f"{arm}: the Prefect server at {server} did not answer for the limit {limit} ({error}). Is it running? "
            "Unset PREFECT_API_URL if nobody else uses the arm."
        ) from None
    if found.limit != 1 or not found.active:
        state = "active" if found.active else "inactive"
        raise HandoffError(
            f"{arm}: the limit {limit} at {server} is {state} with {found.limit} slots, expected an active one of 1. "
            f"Set it: prefect gcl update {limit} --limit 1, and prefect gcl enable {limit}."
        )


def _take(limit: str, server: str, arm: str, deadline: float, progress: Progress) -> Any:
    """Waits until the limit is free or time has reached `deadline`; returns Prefect's entered
    context."""
    from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
    from prefect.concurrency.sync import concurrency

    while True:
        lease = concurrency(
            limit,
            occupy=1,
            max_retries=0,
            lease_duration=LEASE_SECONDS,
            strict=True,
            raise_on_lease_renewal_failure=False,
        )
        try:
            lease.__enter__()
            return lease
        except ConcurrencySlotAcquisitionError as error:
            response = getattr(error.__cause__, "response", None)
            if getattr(response, "status_code", None) != LOCKED:
                raise HandoffError(
                    f"{arm}: the limit {limit} at {server} could not be taken ({error.__cause__ or error}). Is the "
                    "Prefect server running?"
                ) from None
        if time.monotonic() >= deadline:
            raise HandoffError(
                f"{arm}: in use on another computer (limit {limit} at {server}). Wait for it, or stop it; the limit "
                f"of a holder that has crashed ends within {LEASE_SECONDS:g} s."
            )
        progress(0, 1, f"waiting for {arm}: in use on another computer (limit {limit})")
        time.sleep(POLL_SECONDS)


def spoken(say: Callable[[str], None]) -> Progress:
    """A progress that says every note once, until it changes."""
    said: list[str] = []

    def progress(done: int, total: int, note: str = "") -> None:
        if said[-1:] != [note]:
            said.append(note)
            say(note)

    return progress
