"""Runs the recipe of a claim once per learning seed, and compares what it gives with what is
recorded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flows.claims.claim import Claim, claim_file, read_claim, statement
from flows.claims.comparison import RepeatedClaim, compare_claim, write_claim
from flows.claims.outcomes import SeedOutcomes, read_run_outcomes, recorded_outcomes, write_outcomes
from flows.recipes.graph import stages
from flows.recipes.recipe import Recipe, read_recipe
from flows.run import run
from flows.storage.address import runs_folder
from robots.errors import HandoffError, suggest

FILE = "outcomes.json"
"""Every episode of a repetition, in the layout of the record."""


def repeat_claim(
    name: str,
    seeds: Sequence[int] = (),
    *,
    runs: str = "runs",
    parallel: int | None = None,
    debug: bool = False,
) -> RepeatedClaim:
    """Repeats a claim: what is in the cache of `runs` is used, and an interrupted repetition goes
    on where it stopped.

    Args:
        name: a file in `configs/claims/` without its ending, or the path of a YAML file.
        seeds: learning seeds; empty takes those of the claim.
        runs: folder of runs, in which the run of a seed is `CLAIM-SEED`.
        parallel: largest number of stages that run at once; None for one per core.
        debug: shows Prefect's log.

    Returns:
        The comparison, which is also written to `claims/CLAIM/` in `runs` as `claim.json` and
        `claim.html`, with the episodes beside them in `outcomes.json`.

    Raises:
        HandoffError: no such claim, a seed that it has not, a figure of a stage that the recipe has
            not, or a stage failed.
    """
    claim = read_claim(name)
    label = claim_file(name).stem
    unknown = sorted({*seeds} - {*claim.seeds})
    if unknown:
        raise HandoffError(f"claim {label}: has the seeds {[*claim.seeds]}, not {unknown}.")
    recorded = recorded_outcomes(name)
    # Every mistake is found before the first seed is trained.
    for seed in seeds or claim.seeds:
        check_stages(label, claim, read_recipe(claim.recipe, _overrides(label, claim, seed, runs)))
    outcomes: dict[int, SeedOutcomes] = {}
    result = compare_claim(label, statement(name), claim, outcomes, recorded)
    for seed in seeds or claim.seeds:
        overrides = _overrides(label, claim, seed, runs)
        summary = run(claim.recipe, overrides, parallel=parallel, debug=debug)
        outcomes[seed] = read_run_outcomes(summary, claim)
        # After every seed, so that an interruption leaves what has been found.
        result = compare_claim(label, statement(name), claim, outcomes, recorded)
        folder = results_folder(runs, label)
        folder.mkdir(parents=True, exist_ok=True)
        write_claim(result, folder)
        write_outcomes(folder / FILE, outcomes)
    return result


def results_folder(runs: str, label: str) -> Path:
    """Returns the folder of a claim's comparison, `claims/CLAIM/` in the folder of runs or, of a
    storage, in its working copy."""
    return runs_folder(runs) / "claims" / label


def check_stages(label: str, claim: Claim, recipe: Recipe) -> None:
    """Checks that the recipe has every stage that the figures name.

    Raises:
        HandoffError: it has not.
    """
    known = [stage.name for stage in stages(recipe, fetch=None)]
    for stage in claim.stages:
        if stage not in known:
            raise HandoffError(
                f"claim {label}: recipe {claim.recipe} has no stage '{stage}', {suggest(stage, known)}"
            )


def _overrides(label: str, claim: Claim, seed: int, runs: str) -> list[str]:
    name = f"name={label}-{seed}"
    return [*claim.overrides, f"{claim.seed}={seed}", f"runs={runs}", name]
