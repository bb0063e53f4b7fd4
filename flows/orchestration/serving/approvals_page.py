"""Shows the approvals that wait, on a page without scripts, and takes a person's answers.

An answer counts only from a form that this page has shown: the form carries a token that other
sites cannot read, and a browser that states another origin is refused. Where no password is asked
for, the page is given only under names of this computer, so that no other name that leads to it
(DNS rebinding) makes a foreign site a page of this one.
"""

from __future__ import annotations

import hmac
import html
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, urlsplit

from flows.deployment.approval import (
    PAGE,
    Answer,
    Decision,
    Means,
    asked_and_open,
    pending_question,
    question_digest,
    read_answer,
    read_request,
    waiting_runs,
)
from flows.orchestration.approvals import ITEM, give_answer
from robots.errors import HandoffError
from robots.html_page import FOOT, head, table

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

LARGEST_FORM = 64 * 1024
"""Largest size of a form [bytes]."""
MOST_FIELDS = 200
"""Largest number of fields of a form."""
FORM = "application/x-www-form-urlencoded"
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    # With `no-referrer`, browsers would not state the origin of a form.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
STYLE = """<style>
section { border-top: 2px solid var(--line); margin-top: 2rem; }
iframe { width: 100%; height: 60vh; border: 1px solid var(--line); border-radius: .5rem; background: #fff; }
fieldset { border: 1px solid var(--line); border-radius: .5rem; margin: 1rem 0; }
label { display: block; margin: .5rem 0; }
input:not([type=checkbox]) { display: block; font: inherit; width: 100%; box-sizing: border-box; padding: .3rem; }
button { font: inherit; padding: .4rem 1.2rem; margin-right: .8rem; }
[role=alert] { border-left: .3rem solid #c62828; padding: .3rem .8rem; font-weight: 600; }
[role=status] { border-left: .3rem solid #2e7d32; padding: .3rem .8rem; }
</style>"""


class ApprovalsPage:
    """The page of the approvals of a folder of runs.

    Args:
        root: folder of the runs.
        means: what an answer names as the place where it was given.
        has_secret: whether whoever asks has shown a password, or the token of the console.
    """

    def __init__(self, root: Path, means: Means, *, has_secret: bool) -> None:
        self._root = root
        self._means: Means = means
        self._has_secret = has_secret
        self._token = secrets.token_urlsafe(32)

    async def respond(self, request: Request) -> Response:
        """Shows the page, or takes the answer of a form and shows the page with what came of it."""
        from starlette.concurrency import run_in_threadpool
        from starlette.responses import PlainTextResponse

        refusal = self._refusal(request)
        if refusal:
            return PlainTextResponse(refusal, status_code=403, headers=HEADERS)
        if request.method != "POST":
            return await run_in_threadpool(self._shown)
        form = await _read_form(request)
        if form is None:
            text = f"expected a form of at most {LARGEST_FORM // 1024} kB"
            return PlainTextResponse(text, status_code=400, headers=HEADERS)
        if not hmac.compare_digest(form.get("token", "").encode(), self._token.encode()):
            # Nothing of this form is shown again: another site may have filled it in.
            text = "This form is out of date. Load the page of approvals again."
            return PlainTextResponse(text, status_code=403, headers=HEADERS)
        address = "" if request.client is None else request.client.host
        return await run_in_threadpool(self._answered, form, address)

    def _refusal(self, request: Request) -> str:
        """Says why a request is refused whatever it asks for; empty if it is not."""
        from robots.wire.addresses import is_loopback

        host = request.headers.get("host", "")
        origin = request.headers.get("origin")
        try:
            name = urlsplit(f"//{host}").hostname or ""
            same_site = origin is None or urlsplit(origin).netloc == host
        except ValueError:
            return "unreadable names of sites"
        if not self._has_secret and not is_loopback(name):
            return f"{name[:100]}: without a password, approvals are at 127.0.0.1 or localhost only"
        return "a form of another site" if request.method == "POST" and not same_site else ""

    def _answered(self, form: Mapping[str, str], address: str) -> Response:
        """Writes the answer of a form; an answer that is refused is asked for again."""
        run = form.get("run", "")
        folder = waiting_runs(self._root).get(run)
        if folder is None:
            return self._shown(problem="This run no longer waits for an answer.", status=409)
        try:
            items = len(read_request(pending_question(folder))["checklist"])
            answer = _answer(form, items, self._means, address)
            after = give_answer(folder, answer)
        except HandoffError as error:
            return self._shown(problem=str(error), form=form, status=422)
        return self._shown(done=f"{run}: {answer.decision} by {answer.by.strip()}; {after}.")

    def _shown(
        self,
        *,
        done: str = "",
        problem: str = "",
        form: Mapping[str, str] | None = None,
        status: int = 200,
    ) -> Response:
        """The page.

        Args:
            done: what came of an answer.
            problem: why an answer was refused.
            form: the form of that answer, which is filled in again.
            status: status code.
        """
        from starlette.responses import HTMLResponse

        lines = [head("Approvals"), STYLE, "<h1>Approvals</h1>"]
        if done:
            lines.append(f"<p role='status'>{html.escape(done)}</p>")
        waiting = waiting_runs(self._root)
        given = form or {}
        if problem and given.get("run") not in waiting:
            lines.append(f"<p role='alert'>{html.escape(problem)}</p>")
        if not waiting:
            lines.append("<p>No run waits for an approval.</p>")
        for run, folder in waiting.items():
            mine = given if given.get("run") == run else {}
            try:
                lines += self._question(run, folder, mine, problem if mine else "")
            except HandoffError as error:
                lines.append(f"<p role='alert'>{html.escape(f'{run}: {error}')}</p>")
        lines.append(FOOT)
        return HTMLResponse("\n".join(lines), status_code=status, headers=HEADERS)

    def _question(
        self, run: str, folder: Path, form: Mapping[str, str], problem: str
    ) -> Iterator[str]:
        """The question of a run: figures, release page, and the form of the answer."""
        question = pending_question(folder)
        request = read_request(question)
        answer = read_answer(question)
        yield f"<section><h2>{html.escape(run)}</h2>"
        if problem:
            yield f"<p role='alert'>{html.escape(problem)}</p>"
        if answer is not None:
            yield f"<p role='status'>{html.escape(_given(answer))}</p>"
        yield f"<p>May this policy move an arm? {asked_and_open(request)}</p>"
        yield table(("", "result"), list(request["figures"].items()))
        address = quote(os.path.relpath(question / PAGE, self._root))
        yield f"<p><a href='{address}' target='_blank' rel='noopener'>The release page</a></p>"
        yield f"<iframe src='{address}' title='The release page of {html.escape(run)}'></iframe>"
        yield "<form method='post'>"
        # The key Enter in a field chooses the first button: none of the decisions.
        yield "<button type='submit' disabled hidden></button>"
        digest = question_digest(request)
        hidden = {"run": run, "question": digest, "token": self._token}
        yield from (
            f"<input type='hidden' name='{name}' value='{html.escape(value)}'>"
            for name, value in hidden.items()
        )
        # What was confirmed of another question is not filled in again.
        same = form.get("question") == digest
        yield from _fields(request["checklist"], form if same else {})
        yield "<button name='decision' value='approved'>Approve</button>"
        yield "<button name='decision' value='rejected'>Reject</button>"
        yield "</form></section>"


def _answer(form: Mapping[str, str], items: int, means: Means, address: str) -> Answer:
    """The answer of a form.

    Args:
        form: its fields.
        items: number of items of the checklist.
        means: where it was given.
        address: network address of the browser.

    Raises:
        HandoffError: a form without a decision.
    """
    decisions: Mapping[str, Decision] = {"approved": "approved", "rejected": "rejected"}
    decision = decisions.get(form.get("decision", ""))
    if decision is None:
        raise HandoffError("approval: choose Approve or Reject.")
    return Answer(
        decision,
        form.get("by", ""),
        form.get("reason", ""),
        tuple(ITEM.format(place) in form for place in range(items)),
        means,
        address,
        # A form without a digest is one of no question; an empty one would mean the present one.
        form.get("question") or "none",
    )


def _fields(checklist: list[str], form: Mapping[str, str]) -> Iterator[str]:
    """The fields that a person fills in, with the values of an earlier attempt."""
    yield "<fieldset><legend>To confirm</legend>"
    for place, text in enumerate(checklist):
        name = ITEM.format(place)
        checked = " checked" if name in form else ""
        box = f"<input type='checkbox' name='{name}' value='yes'{checked}>"
        yield f"<label>{box} {html.escape(text)}</label>"
    yield "</fieldset>"
    for name, label in (("by", "Your name"), ("reason", "Reason (needed for a rejection)")):
        value = html.escape(form.get(name, ""))
        field = f"<input name='{name}' value='{value}' autocomplete='off'>"
        yield f"<label>{label} {field}</label>"


def _given(answer: Mapping[str, Any]) -> str:
    """Describes an answer behind which the run has not gone on yet."""
    reason = f": {answer['reason']}" if answer["reason"] else ""
    text = f"{answer['decision']} by {answer['by']}, {answer['time']}, {answer['means']}{reason}"
    return f"{text}. The run has not gone on yet; another answer replaces this one."


async def _read_form(request: Request) -> dict[str, str] | None:
    """The fields of a form; None if it is too large, or none."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
        return None
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > LARGEST_FORM:
            return None
    try:
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        return None
    return {name: values[-1] for name, values in fields.items()}
