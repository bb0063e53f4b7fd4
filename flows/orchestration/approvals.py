"""Asks for approvals on the page of a Prefect run, and passes on answers that were given elsewhere.

The run is suspended, so that nothing waits in memory, for days if need be; when somebody answers,
it starts again, takes its finished stages from the cache and goes on. An answer that is not
complete is asked for again.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

from flows.deployment.approval import (
    PAGE,
    Answer,
    has_session,
    note_flow_run,
    pending_question,
    question_digest,
    read_answer,
    read_request,
    refused_answers,
    seconds_left,
    suspended_flow_run,
    write_answer,
)
from flows.orchestration.served_results import served_at
from flows.orchestration.stage_report import artifact_key
from robots.errors import ApprovalNeededError, HandoffError

ITEM = "item_{}"
"""Name of the field of an item of the checklist."""
LONGEST_REASON = 200
"""Longest part of Prefect's reason that is repeated [characters]."""


def answer_on_page(run: Path, needed: ApprovalNeededError) -> None:
    """Suspends the present flow run until somebody answers, on its page or elsewhere, and writes
    the answer of its page.

    Args:
        run: folder of the run, which names its question.
        needed: raised again if the flow run has no deployment, without which Prefect cannot start
            it again, and when the question has expired.

    Raises:
        ApprovalNeededError: `needed`.
    """
    from prefect.flow_runs import suspend_flow_run
    from prefect.runtime import deployment, flow_run

    if not deployment.id:
        raise needed
    note_flow_run(run, str(flow_run.id))
    folder = pending_question(run)
    request = read_request(folder)
    form = approval_form(request["checklist"])
    while read_answer(folder) is None:
        timeout = int(seconds_left(request))
        if timeout < 1:
            raise needed
        # With a known key, Prefect gives the earlier answer: each attempt has one of its own, which
        # is the same before and behind the suspension.
        refused = refused_answers(folder, "page of the run")
        key = f"{folder.name}-{question_digest(request)[:8]}-{len(refused)}"
        text = question_text(folder, refused[-1] if refused else "")
        given: Any = suspend_flow_run(
            wait_for_input=form.with_initial_data(description=text),
            timeout=timeout,
            key=artifact_key(key),
        )
        # The reason of a refusal is in the audit, and on the page that asks again.
        with suppress(HandoffError):
            write_answer(folder, to_answer(given.model_dump(), len(request["checklist"])))


def give_answer(run: Path, answer: Answer) -> str:
    """Writes a person's answer to the question of a run, and lets the run go on if it is suspended
    on a Prefect server; returns what happens next, in a phrase.

    Args:
        run: folder of the run.
        answer: the answer, which is not one of the page of the run.

    Raises:
        HandoffError: the run waits for nobody, or the answer is refused.
    """
    flow_run = suspended_flow_run(run)
    write_answer(pending_question(run), answer)
    if has_session(run):
        return "the session that waits for it goes on"
    if not flow_run:
        return "run the recipe again to go on"
    items = {ITEM.format(place): yes for place, yes in enumerate(answer.confirmed)}
    values = {"decision": answer.decision, "by": answer.by, "reason": answer.reason, **items}
    obstacle = _resume(flow_run, values)
    if obstacle:
        return (
            f"flow run {flow_run} did not go on ({obstacle}): resume it on its page, or run the "
            "recipe again"
        )
    return "its suspended flow run goes on"


def _resume(flow_run: str, values: Mapping[str, Any]) -> str:
    """Resumes a suspended flow run with the values that its form asks for; returns why that is not
    possible, empty if it was."""
    import httpx
    from prefect.client.orchestration import get_client
    from prefect.exceptions import PrefectException
    from prefect.settings import PREFECT_API_URL

    # Without an address, Prefect would start a server of its own.
    if not PREFECT_API_URL.value():
        return "PREFECT_API_URL is not set"
    try:
        with get_client(sync_client=True) as client:
            result = client.resume_flow_run(UUID(flow_run), run_input=dict(values))
    except (httpx.HTTPError, PrefectException, ValueError) as error:
        return " ".join(str(error).split())[:LONGEST_REASON] or type(error).__name__
    return "" if result.status.value == "ACCEPT" else str(getattr(result.details, "reason", ""))


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
    return Answer(given["decision"], given["by"], given["reason"], confirmed, "page of the run")


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
