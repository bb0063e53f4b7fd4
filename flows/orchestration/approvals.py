"""Asks for approvals on the page of a Prefect run.

The run is suspended, so that nothing waits in memory, for days if need be; when somebody answers,
it starts again, takes its finished stages from the cache and goes on. An answer that is not
complete is asked for again.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from flows.deployment.approval import PAGE, Answer, pending_question, read_request, write_answer
from flows.orchestration.served_results import served_at
from flows.orchestration.stage_report import artifact_key
from robots.errors import ApprovalNeededError, HandoffError

ITEM = "item_{}"
"""Name of the field of an item of the checklist."""


def answer_on_page(run: Path, needed: ApprovalNeededError) -> None:
    """Suspends the present flow run until somebody answers on its page, and writes the answer.

    Args:
        run: folder of the run, which names its question.
        needed: raised again if the flow run has no deployment, without which Prefect cannot start
            it again.

    Raises:
        ApprovalNeededError: `needed`.
    """
    from prefect.flow_runs import suspend_flow_run
    from prefect.runtime import deployment

    if not deployment.id:
        raise needed
    folder = pending_question(run)
    request = read_request(folder)
    form = approval_form(request["checklist"])
    problem, attempt = "", 0
    while True:
        # Every attempt has a key of its own: with a known one, Prefect gives the earlier answer.
        given: Any = suspend_flow_run(
            wait_for_input=form.with_initial_data(description=question_text(folder, problem)),
            timeout=int(timedelta(hours=request["answer_hours"]).total_seconds()),
            key=artifact_key(f"{folder.name}-{attempt}"),
        )
        try:
            write_answer(folder, to_answer(given.model_dump(), len(request["checklist"])))
            return
        except HandoffError as error:
            problem, attempt = str(error), attempt + 1


def approval_form(checklist: list[str]) -> Any:
    """Returns the class of the form: a decision, a name, a reason, and a box per item of the
    checklist."""
    from prefect.input import RunInput
    from pydantic import Field, create_model

    items: dict[str, Any] = {
        ITEM.format(position): (bool, Field(default=False, title=text, description=text))
        for position, text in enumerate(checklist)
    }
    return create_model(
        "Approval",
        __base__=RunInput,
        decision=(Literal["approved", "rejected"], Field(description="Your decision.")),
        by=(str, Field(default="", description="Your name.")),
        reason=(str, Field(default="", description="Needed for a rejection.")),
        **items,
    )


def to_answer(given: Mapping[str, Any], items: int) -> Answer:
    """Returns the answer in a form.

    Args:
        given: values of the form's fields.
        items: number of items of the checklist.
    """
    confirmed = tuple(bool(given.get(ITEM.format(position))) for position in range(items))
    return Answer(given["decision"], given["by"], given["reason"], confirmed, "web page")


def question_text(folder: Path, problem: str = "") -> str:
    """Returns what the form shows: the figures, a link to the page, and what was wrong with an
    earlier answer.

    Args:
        folder: folder of the question.
        problem: what was wrong; empty for the first question.
    """
    request = read_request(folder)
    lines = [f"**{problem}**", ""] if problem else []
    lines += ["May this policy move an arm?", "", "| | result |", "|---|---|"]
    lines += [f"| {title} | {text} |" for title, text in request["figures"].items()]
    page = folder / PAGE
    address = served_at(page)
    lines += ["", f"[The release page]({address})" if address else f"The release page: `{page}`"]
    return "\n".join(lines)
