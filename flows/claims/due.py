"""Repeats as many claims as fit in a time, those first that were not repeated for longest: run
every night, it goes round all of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from flows.claims.claim import CLAIMS, claim_file, read_claim
from flows.claims.outcomes import recorded_outcomes
from flows.claims.repeat import repeat_claim
from flows.config.files import available
from flows.reports.run_records.reading import SUMMARY, run_state
from flows.reports.run_records.record import RUN
from flows.runner.artifact import write_json
from flows.storage.address import runs_folder
from robots.errors import HandoffError

UNKNOWN_MINUTES = 60.0
"""Expected time of one seed of a claim that was neither recorded nor repeated [min]."""
TABLE = "due.json"
"""The last set, in the folder of claims."""
HEADINGS = ("claim", "seed", "minutes", "expected", "result")


@dataclass(frozen=True)
class DueSeed:
    """One learning seed of a claim, and what is known of its last repetition."""

    claim: str
    """Name or path of the claim."""
    seed: int
    repeated: float | None
    """End of the last repetition here [s since the epoch]; None if there is none."""
    expected: float
    """Time of all stages one after another when it was last run [min]."""


@dataclass(frozen=True)
class RepeatedSeed:
    """What came of one seed of the set."""

    claim: str
    seed: int
    expected: float
    """See `DueSeed.expected`."""
    minutes: float
    """Time that it took [min]; little if nothing has changed since it was last run."""
    status: Literal["reproduced", "lost", "failed", "postponed"]
    """`lost`: a figure misses a bar that the record meets. `failed`: the recipe did not run to its
    end. `postponed`: the time was over."""
    result: str
    """The outcome in a sentence."""

    @property
    def row(self) -> tuple[str, ...]:
        """Cells of a table under `HEADINGS`."""
        took = "—" if self.status == "postponed" else f"{self.minutes:.1f}"
        return (self.claim, str(self.seed), took, f"{self.expected:.1f}", self.result)


def due_seeds(names: Sequence[str] = (), *, runs: str = "runs") -> list[DueSeed]:
    """Lists every learning seed of claims in the order in which they are due: first those that were
    never repeated, then those whose repetition is oldest; the shorter one first among equals. A
    repetition that was interrupted is none: it goes on where it stopped.

    Args:
        names: claims, see `flows.claims.claim.claim_file`, each once; empty takes all of
            `configs/claims/`.
        runs: folder of runs.

    Raises:
        HandoffError: no such claim, or one that cannot be read.
    """
    due = []
    for name in dict.fromkeys(names) or available(CLAIMS):
        label = claim_file(name).stem
        recorded = {seed: entry.minutes for seed, entry in recorded_outcomes(name).items()}
        for seed in read_claim(name).seeds:
            usual = recorded.get(seed, max(recorded.values(), default=UNKNOWN_MINUTES))
            repeated, minutes = _last(runs_folder(runs) / f"{label}-{seed}")
            due.append(DueSeed(name, seed, repeated, usual if minutes is None else minutes))
    return sorted(due, key=lambda one: (one.repeated or 0.0, one.expected, one.claim, one.seed))


def repeat_due(
    minutes: float,
    names: Sequence[str] = (),
    *,
    runs: str = "runs",
    report: Callable[[RepeatedSeed], None],
    begins: Callable[[DueSeed], None] = lambda _: None,
    debug: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> list[RepeatedSeed]:
    """Repeats the seeds that are due, one after another, as long as the next one is expected to end
    in time. A claim that fails does not keep the others from running.

    Args:
        minutes: time for the whole set [min].
        names: as for `due_seeds`.
        runs: folder of runs. Stages whose code, options and inputs are those of an earlier
            repetition come from its cache.
        report: is told of every seed as soon as it is decided.
        begins: is told of every seed that is repeated, before it is.
        debug: shows Prefect's log.
        clock: monotonic time [s].

    Returns:
        The seeds in their order, also those that were postponed; written to `claims/due.json` in
        `runs` after each.
    """
    begun, done = clock(), []
    folder = runs_folder(runs) / CLAIMS
    folder.mkdir(parents=True, exist_ok=True)
    for one in due_seeds(names, runs=runs):
        if (clock() - begun) / 60.0 + one.expected > minutes:
            result = RepeatedSeed(
                one.claim, one.seed, one.expected, 0.0, "postponed", "postponed: no time left"
            )
        else:
            begins(one)
            result = _repeat(one, runs, debug, clock)
        done.append(result)
        write_json(folder / TABLE, {"minutes": minutes, "seeds": [asdict(each) for each in done]})
        report(result)
    return done


def _repeat(one: DueSeed, runs: str, debug: bool, clock: Callable[[], float]) -> RepeatedSeed:
    begun = clock()
    status: Literal["reproduced", "lost", "failed"]
    try:
        repeated = repeat_claim(one.claim, [one.seed], runs=runs, debug=debug)
    except HandoffError as error:
        status, result = "failed", f"failed: {error}"
    else:
        status, result = "lost" if repeated.lost else "reproduced", repeated.verdict
    took = (clock() - begun) / 60.0
    return RepeatedSeed(one.claim, one.seed, one.expected, took, status, result)


def _last(run: Path) -> tuple[float | None, float | None]:
    """When the last run in a folder came to its end or failed [s since the epoch], and the time of
    its stages [min], known only if all have run; None without one, or if it cannot be read."""
    try:
        state = run_state(json.loads((run / RUN).read_bytes()))
        ended = (run / RUN).stat().st_mtime
        rows = json.loads((run / SUMMARY).read_bytes())["stages"] if state == "finished" else {}
    except (OSError, ValueError, KeyError):
        return None, None
    if state == "finished":
        return ended, sum(row["computed_seconds"] for row in rows.values()) / 60.0
    return ended if state == "failed" else None, None
