"""Opens the table of a policy in a session at an arm, simulated or real."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flows.deployment.config import DeploySession, DeployTaskSession
from flows.deployment.session_tables.board import BoardTable, real_setup, simulated_setup
from flows.deployment.session_tables.gripper_table import GripperTable, host_options
from flows.deployment.session_tables.hosts import real_host, simulated_host
from flows.deployment.session_tables.session_table import SessionTable
from robots.contract import Contract

BOARD_TASK = "push_t"
"""The task that is done with a pusher on a board."""


@contextmanager
def open_table(
    session: DeploySession | DeployTaskSession, contract: Contract
) -> Iterator[SessionTable]:
    """Provides the arm and its table while the context lasts; without an address of an arm, a
    simulated one runs in a separate process.

    Args:
        session: options of the session, of the class that fits the policy's task.
        contract: contract of the policy.

    Raises:
        HandoffError: no tracker for the board of a real arm, a tracker that sends nothing, or a
            simulated task whose arm carries no gripper.
    """
    from real.deploy.field_trackers import field_trackers

    if isinstance(session, DeploySession):
        with real_setup(session) if session.host else simulated_setup(session) as setup:
            yield BoardTable(session, contract, setup)
        return
    options = host_options(session, contract)
    provided = real_host(options) if session.host else simulated_host(options, contract.task)
    with (
        field_trackers(session.trackers, session.constants, contract) as trackers,
        provided as host,
    ):
        yield GripperTable(session, contract, host, trackers)
