"""Tells the policy of a session what to do: at its begin, and as a person at the console says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from flows.deployment.arms import wait_for_resume
from flows.deployment.config import DeploySession, DeployTaskSession
from flows.deployment.session_tables.session_table import SessionTable
from flows.session.arm_supervisor import ArmSupervisor
from robots.contract import Contract
from robots.errors import HandoffError, error_text

if TYPE_CHECKING:
    from robots.language.tokenizer import SentenceTokenizer


SHOWN = 60
"""Most characters of a refused sentence that the page repeats beside the reason."""


def with_instruction(
    session: DeploySession | DeployTaskSession,
    contract: Contract,
    tokenizer: SentenceTokenizer | None,
) -> DeploySession | DeployTaskSession:
    """Returns the session with what the policy is told at its begin: the given instruction, or else
    the policy's default one; nothing where the simulated task says it in every episode.

    Raises:
        HandoffError: an instruction that the policy cannot read, or none where it has no default.
    """
    if isinstance(session, DeploySession) or tokenizer is None or not contract.instruction:
        return session
    if session.instruction is None:
        if not session.host and _task_instructs(contract.task):
            return session
        default = tokenizer.spec.default_instruction
        if default is None:
            raise HandoffError(
                f"deploy: the policy of {contract.task} takes an instruction and has no default one. Add --instruction."
            )
        session = replace(session, instruction=default)
    tokenizer.tokens([session.instruction or ""], 1)
    return session


def tell(
    tokenizer: SentenceTokenizer | None,
    table: SessionTable,
    supervisor: ArmSupervisor,
    say: Callable[[str], None],
) -> bool:
    """Tells the policy what a person has said at the console since the last episode; what it cannot
    read is asked for again, while the arm holds still.

    Args:
        tokenizer: reads sentences for the policy; None if it takes none.
        table: the table of the session.
        supervisor: the person at the console.
        say: called with a line for every instruction.

    Returns:
        False if the person ends the session.
    """
    while (given := supervisor.operator.instruction()) is not None:
        try:
            if tokenizer is None:
                raise HandoffError("deploy: the policy takes no instruction.")
            tokenizer.tokens([given.text], 1)
            table.instruct(given.text)
        except HandoffError as refused:
            reason = error_text(refused)
            say(f"instruction  not taken, “{given.text}”: {reason}")
            supervisor.hold(
                f"The policy cannot be told “{_begin(given.text)}”: {reason} Tell it something else, "
                "or resume without."
            )
            if not wait_for_resume(supervisor.supervision):
                return False
        else:
            supervisor.episode["instruction"] = given.text
            say(f"instruction  by {given.person}: {given.text}")
    return True


def _begin(sentence: str) -> str:
    return sentence if len(sentence) <= SHOWN else f"{sentence[: SHOWN - 1]}…"


def _task_instructs(task: str) -> bool:
    from robots.language.text import INSTRUCTION
    from sim.make import find_task

    return INSTRUCTION in find_task(task).observations
