"""Stage `approve`: waits for a person who releases a policy for an arm."""

from __future__ import annotations

import calendar
import time
from collections.abc import Sequence
from pathlib import Path

from flows.artifacts import Approval, Bundle, Episodes, Evaluation, Gate, Output
from flows.deployment.approval import PAGE, TIME, ApprovalConfig, read_answer, write_request
from robots.errors import ApprovalNeededError, ApprovalRejectedError
from robots.interfaces import Progress

FIXED_SEEDS = True


def run(
    config: ApprovalConfig,
    out: Path,
    progress: Progress,
    *,
    bundle: Bundle,
    gate: Gate,
    scores: Sequence[Evaluation] | None = None,
    twin: Episodes | None = None,
) -> Output[Approval]:
    """Asks a person whether `bundle`, which passed `gate`, may move an arm, and records the answer.

    The person sees the figures, pictures and videos of all inputs, and answers on the page of a
    Prefect run, on the page of approvals of `handoff server`, or by `handoff approve RUN`.

    Raises:
        ApprovalNeededError: nobody has answered yet.
        ApprovalRejectedError: the person rejected the policy.
    """
    from flows.runner.artifact import read_manifest

    about = {
        "bundle": read_manifest(bundle)["digest"],
        "gate": read_manifest(gate)["digest"],
    }
    answer = read_answer(out)
    if answer is None:
        shown = {"gate": gate, **_titled(scores or ())}
        write_request(config, out, shown if twin is None else {**shown, "twin": twin}, about)
        raise ApprovalNeededError(f"a person must approve the policy first: {out / PAGE}")
    if answer["decision"] == "rejected":
        raise ApprovalRejectedError(f"rejected by {answer['by']}: {answer['reason']}")
    decided = calendar.timegm(time.strptime(answer["time"], TIME))
    metrics = {
        "decision": answer["decision"],
        "by": answer["by"],
        "means": answer["means"],
        "login": answer["login"],
        "computer": answer["computer"],
        "about": about,
        "reason": answer["reason"],
        "time": answer["time"],
        "valid_until": decided + 3600.0 * config.valid_hours,
        "confirmed": list(config.checklist),
    }
    return Output(metrics)


def _titled(scores: Sequence[Path]) -> dict[str, Path]:
    """Evaluations by the names of their stages, which are the beginnings of their folders."""
    return {path.resolve().name.rpartition("-")[0]: path for path in scores}
