"""Implements `handoff approve RUN`: answers the question that a run waits for at the terminal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flows.deployment.approval import (
    PAGE,
    Answer,
    pending_question,
    question_digest,
    read_request,
)
from flows.orchestration.approvals import give_answer
from robots.errors import HandoffError
from robots.processes import login

YES = ("y", "yes")


def approve_command(
    run: Path,
    *,
    by: str | None,
    reject: str | None,
    confirm: bool,
    say: Callable[[str], None],
    ask: Callable[[str], str] = input,
) -> None:
    """Runs `handoff approve`.

    Args:
        run: folder of the run.
        by: name of the person; None asks for it.
        reject: reason of a rejection; None asks for the items of the checklist.
        confirm: confirms all items without asking.
        say: prints a line.
        ask: asks for a line.

    Raises:
        HandoffError: the run waits for nobody, or the answer is not complete.
    """
    folder = pending_question(run)
    request = read_request(folder)
    shown = question_digest(request)
    for title, text in request["figures"].items():
        say(f"{title}  {text}")
    say(f"page  {folder / PAGE}")
    name = by or _asked(ask, f"Your name [{login()}]: ") or login()
    if reject is not None:
        answer = Answer("rejected", name, reject, question=shown)
    else:
        items = request["checklist"]
        confirmed = tuple(confirm or _asked(ask, f"{item} [y/N] ").lower() in YES for item in items)
        answer = Answer("approved", name, "", confirmed, question=shown)
    say(f"{answer.decision} by {name}; {give_answer(run, answer)}")


def _asked(ask: Callable[[str], str], question: str) -> str:
    try:
        return ask(question).strip()
    except EOFError:
        raise HandoffError(
            f"approve: nobody answers '{question.strip()}'. Give --by NAME and --confirm, or --reject REASON."
        ) from None
