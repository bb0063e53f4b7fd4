"""Keeps the approval of a policy by a person: what was asked, what was answered, and the record of
both.

    runs/artifacts/approval-3f9c0a1b2c4d.partial/
        request.json     digests of bundle and gate, figures, checklist
        release.html     the page that the person looks at
        answer.json      decision, name, time, reason
    runs/approvals.jsonl     every question and every answer, refused ones too, never changed
"""

from __future__ import annotations

import html
import json
import os
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from flows.reports.results import describe
from flows.reports.run_records.process_mark import has_ended, process_mark
from flows.runner.artifact import (
    json_digest,
    read_manifest,
    verify_artifact,
    withdraw,
    write_json,
)
from flows.runner.stage import PARTIAL
from robots.config import Positive, config
from robots.errors import HandoffError
from robots.html_page import FOOT, head, picture, table, video
from robots.processes import login
from robots.storage.durable import append_line, write_atomically

REQUEST = "request.json"
ANSWER = "answer.json"
PAGE = "release.html"
AUDIT = "approvals.jsonl"
"""File in the runs folder with every question and every answer."""
PENDING = "approval.json"
"""File in the folder of a run that waits for an answer: where the question is."""
TIME = "%Y-%m-%dT%H:%M:%SZ"
"""Format of the times of questions and answers, UTC."""
KIND = "approval"
"""Kind of the artifact of an approval."""
LONGEST_TEXT = 1000
"""Longest name or reason [characters]."""
PICTURES, VIDEOS = (".png", ".jpg"), (".mp4",)
MOST_FILES = 6
"""Number of pictures and of videos of one artifact on the page."""

Decision = Literal["approved", "rejected"]
Means = Literal["terminal", "page of the run", "page of approvals", "console"]


@config
class ApprovalConfig:
    """Approval of a policy by a person before it moves an arm."""

    checklist: tuple[str, ...] = (
        "I have looked at the figures and the videos.",
        "The workspace is clear, and its limits are those of this table.",
        "The emergency stop is within reach, and somebody will stand there.",
    )
    """Sentences that the person confirms one by one."""
    valid_hours: Positive = 168.0
    """Time for which an approval is valid [h]; an arm refuses it afterwards."""
    answer_hours: Positive = 72.0
    """Time for which the question can be answered [h]; afterwards a run on a Prefect server fails,
    and another run asks again."""


@dataclass(frozen=True)
class Answer:
    """Answer of a person."""

    decision: Decision
    by: str
    """Name of the person."""
    reason: str = ""
    confirmed: tuple[bool, ...] = ()
    """Confirmations, in the order of the checklist."""
    means: Means = "terminal"
    """Where the answer was given."""
    address: str = ""
    """Network address of the browser; empty if it is not known."""
    question: str = ""
    """Digest of the question that the person has seen; empty for the present one."""


def write_request(
    settings: ApprovalConfig, out: Path, shown: Mapping[str, Path], about: Mapping[str, Any]
) -> None:
    """Writes the question and its page, and adds the question to the audit. The same question that
    can still be answered is kept, with the time at which it was asked.

    Args:
        settings: options of the approval.
        out: folder of the stage.
        shown: artifacts that the page shows, by title.
        about: digests of what is approved, by name.
    """
    figures = {
        title: describe(manifest.get("uses", ""), manifest["metrics"])
        for title, path in shown.items()
        if (manifest := read_manifest(path))
    }
    request = {
        "about": dict(about),
        "figures": figures,
        "checklist": list(settings.checklist),
        "valid_hours": settings.valid_hours,
        "answer_hours": settings.answer_hours,
        "asked": time.time(),
    }
    earlier = read_request(out) if (out / REQUEST).exists() else {}
    same = {**request, "asked": earlier.get("asked")} == earlier and seconds_left(earlier) > 0.0
    if not same:
        write_json(out / REQUEST, request)
        _audit(out, {"event": "asked", "question": question_digest(request), **request})
    write_atomically(out / PAGE, "\n".join(_page(out, request, shown)).encode())


def question_digest(request: Mapping[str, Any]) -> str:
    """Returns the digest of a question, which its answer names."""
    return json_digest(request)


def seconds_left(request: Mapping[str, Any]) -> float:
    """Returns the time for which a question can still be answered [s]; negative behind it."""
    return request["asked"] + 3600.0 * request["answer_hours"] - time.time()


def asked_and_open(request: Mapping[str, Any]) -> str:
    """States when a question was asked, and until when it can be answered."""
    until = request["asked"] + 3600.0 * request["answer_hours"]
    return f"Asked at {_utc(request['asked'])}; it can be answered until {_utc(until)}."


def read_request(folder: Path) -> dict[str, Any]:
    """Reads the question in the folder of an approval.

    Raises:
        HandoffError: there is none.
    """
    try:
        return json.loads((folder / REQUEST).read_bytes())
    except (OSError, ValueError) as error:
        raise HandoffError(f"{folder}: no question to answer ({error}).") from None


def read_answer(folder: Path) -> dict[str, Any] | None:
    """Reads the answer in the folder of an approval; None if there is none, if it answers another
    question, or if it rejects one that has expired, which is then asked again."""
    try:
        answer = json.loads((folder / ANSWER).read_bytes())
        request = read_request(folder)
    except (OSError, ValueError, HandoffError):
        return None
    if answer.get("request") != question_digest(request):
        return None
    over = answer["decision"] == "rejected" and seconds_left(request) <= 0.0
    return None if over else answer


def write_answer(folder: Path, answer: Answer) -> None:
    """Checks an answer, and writes it and its line in the audit. A later answer replaces it; a
    refused one is in the audit only. A rejection withdraws an earlier approval.

    Raises:
        HandoffError: no name, an approval with an open item of the checklist, a rejection without
            a reason, a question that has expired or is another than the one seen, or no question.
    """
    request = read_request(folder)
    entry = {
        **asdict(answer),
        "by": answer.by.strip(),
        "reason": answer.reason.strip(),
        "time": _utc(time.time()),
        "login": login(),
        "computer": platform.node(),
        "request": question_digest(request),
    }
    del entry["question"]
    problem = _problem(request, answer)
    if problem:
        cut = {name: str(entry[name])[:LONGEST_TEXT] for name in ("by", "reason")}
        _audit(folder, {**entry, **cut, "event": "refused", "problem": problem})
        raise HandoffError(f"approval: {problem}")
    _audit(folder, {**entry, "event": "answered", "about": request["about"]})
    write_json(folder / ANSWER, entry)
    if answer.decision == "rejected":
        withdraw(folder.with_name(folder.name.removesuffix(PARTIAL)))


def refused_answers(folder: Path, means: Means) -> list[str]:
    """Returns why answers to the present question were refused, oldest first.

    Args:
        folder: folder of the question.
        means: where they were given.
    """
    digest = question_digest(read_request(folder))
    lines = [json.loads(line) for line in _audit_file(folder).read_text().splitlines()]
    return [
        line["problem"]
        for line in lines
        if line["event"] == "refused" and line["request"] == digest and line["means"] == means
    ]


def _problem(request: Mapping[str, Any], answer: Answer) -> str:
    """Says what an answer lacks; empty if it counts."""
    checklist: Sequence[str] = request["checklist"]
    by, reason = answer.by.strip(), answer.reason.strip()
    if seconds_left(request) <= 0.0:
        return (
            f"the question was asked at {_utc(request['asked'])} and could be answered for "
            f"{request['answer_hours']:g} h. Run the recipe again, which asks again."
        )
    if answer.question and answer.question != question_digest(request):
        return "the question has changed since it was shown. Look at it again."
    if not by or not by.isprintable():
        return f"the name is {by[:40]!r}, expected the name of the person who decides."
    if max(len(by), len(reason)) > LONGEST_TEXT:
        return f"name or reason is longer than {LONGEST_TEXT} characters."
    if answer.decision == "rejected":
        return "" if reason else "a rejection needs a reason."
    given = (*answer.confirmed, *[False] * len(checklist))
    open_items = [item for item, yes in zip(checklist, given, strict=False) if not yes]
    return f"not confirmed: {' '.join(open_items)}" if open_items else ""


def write_pending(run: Path, stage: str, folder: Path) -> None:
    """Notes in the folder of a run where the question of its stage is."""
    write_json(run / PENDING, {"stage": stage, "folder": os.path.relpath(folder, run)})


def note_flow_run(run: Path, identifier: str) -> None:
    """Adds the identifier of the suspended Prefect run to that note."""
    write_json(run / PENDING, {**_pending(run), "flow_run": identifier})


@contextmanager
def noted_session(run: Path) -> Iterator[None]:
    """Notes there that this process waits for the answer, as long as the block runs."""
    mark = {**process_mark(), "host": platform.node()}
    write_json(run / PENDING, {**_pending(run), "session": mark})
    try:
        yield
    finally:
        write_json(run / PENDING, {**_pending(run), "session": None})


def has_session(run: Path) -> bool:
    """Returns whether a process waits for the answer and goes on by itself."""
    mark = _pending(run).get("session")
    return mark is not None and (mark["host"] != platform.node() or not has_ended(mark))


def suspended_flow_run(run: Path) -> str:
    """Returns the identifier of the suspended Prefect run; empty if there is none."""
    return str(_pending(run).get("flow_run", ""))


def clear_pending(run: Path) -> None:
    """Removes that note."""
    (run / PENDING).unlink(missing_ok=True)


def run_folder(run: Path | str, runs: Path = Path("runs")) -> Path:
    """Returns the folder of a run that may not have finished.

    Args:
        run: name of the run, or the path of its folder.
        runs: folder in which it is looked for by name.
    """
    given = Path(run)
    return given if given.is_dir() else runs / given


def waiting_runs(runs: Path) -> dict[str, Path]:
    """Returns the folders of the runs that wait for an answer, by name."""
    found = [note.parent for depth in ("*", "*/*") for note in runs.glob(f"{depth}/{PENDING}")]
    # The runs of sessions are a folder deeper; a link of a run leads to an artifact, to no run.
    return {
        folder.relative_to(runs).as_posix(): folder
        for folder in sorted(found)
        if not folder.is_symlink()
    }


def pending_question(run: Path) -> Path:
    """Returns the folder of the question that a run waits for.

    Raises:
        HandoffError: the run waits for nobody.
    """
    return Path(os.path.normpath(run / _pending(run)["folder"]))


def _pending(run: Path) -> dict[str, Any]:
    try:
        note = json.loads((run / PENDING).read_bytes())
        return {**note, "folder": str(note["folder"])}
    except (OSError, ValueError, KeyError, TypeError):
        raise HandoffError(f"{run}: the run waits for no approval.") from None


def approved_gate(approval: Path) -> Path:
    """Returns the gate that a valid approval names, after re-hashing the approval's files.

    Raises:
        HandoffError: not an approval, a rejected or expired one, or one that was changed.
    """
    manifest = verify_artifact(approval)
    _check_not_rejected(approval, manifest["metrics"].get("about"))
    check_approved(str(approval), manifest)
    return (approval / manifest["input_paths"]["gate"]).resolve()


def check_approved(where: str, manifest: Mapping[str, Any]) -> None:
    """Checks that a verified manifest is that of an approval which is still valid.

    Args:
        where: what has the manifest, for the message of an error.
        manifest: the manifest.

    Raises:
        HandoffError: not an approval, a rejected or expired one.
    """
    metrics = manifest["metrics"]
    if manifest["kind"] != KIND or metrics.get("decision") != "approved":
        raise HandoffError(
            f"{where}: is the artifact of stage '{manifest['stage']}', expected that of an approval, such as "
            "runs/demo_approved/approval."
        )
    until = stated if isinstance(stated := metrics.get("valid_until"), int | float) else 0.0
    if not time.time() <= until:
        ended = time.strftime("%Y-%m-%d %H:%M", time.localtime(until))
        raise HandoffError(
            f"{where}: the approval by {metrics.get('by')} was valid until {ended}. Run the recipe again with "
            f"--redo {manifest['stage']}, and approve it again."
        )


def _check_not_rejected(approval: Path, about: Any) -> None:
    """Checks that the last answer about the same bundle and gate is no rejection, by the audit of
    the runs folder of the approval; a copy elsewhere has none."""
    audit = _audit_file(approval)
    lines = audit.read_text().splitlines() if audit.is_file() else []
    answers = [line for line in map(json.loads, lines) if line["event"] == "answered"]
    of_it = [line for line in answers if line["about"] == about]
    if of_it and of_it[-1]["decision"] == "rejected":
        last = of_it[-1]
        raise HandoffError(
            f"{approval}: the policy was rejected afterwards by {last['by']}, {last['time']}: {last['reason']}. Run "
            "the recipe again, which waits for another approval."
        )


def _utc(seconds: float) -> str:
    return time.strftime(TIME, time.gmtime(seconds))


def _audit_file(folder: Path) -> Path:
    """The audit of the runs folder, by the folder of a question."""
    return folder.resolve().parents[1] / AUDIT


def _audit(folder: Path, entry: Mapping[str, Any]) -> None:
    """Adds a line to the audit."""
    line = {"time": _utc(time.time()), "folder": folder.name, **entry}
    append_line(_audit_file(folder), json.dumps(line))


def _page(out: Path, request: Mapping[str, Any], shown: Mapping[str, Path]) -> Iterator[str]:
    yield head("Release of a policy")
    yield "<h1>Release of a policy</h1>"
    yield table(("", "result"), list(request["figures"].items()))
    yield "<h2>To confirm</h2><ul>"
    yield from (f"<li>{html.escape(item)}" for item in request["checklist"])
    yield "</ul>"
    for title, artifact in shown.items():
        yield f"<h2>{html.escape(title)}</h2>"
        # Links are relative, so that the runs folder can be moved as a whole.
        folder = os.path.relpath(artifact.resolve(), out.resolve())
        names = sorted(read_manifest(artifact)["files"])
        for name in [name for name in names if name.endswith(PICTURES)][:MOST_FILES]:
            yield picture(f"{folder}/{name}", name)
        for name in [name for name in names if name.endswith(VIDEOS)][:MOST_FILES]:
            yield video(f"{folder}/{name}", name)
    yield "<h2>Digests</h2>"
    yield table(("", "sha256"), [(key, str(value)) for key, value in request["about"].items()])
    yield FOOT
