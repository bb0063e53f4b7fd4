"""Defines the commands about artifacts: `explain`, `reproduce`, `fetch`, `gc`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from flows.commands import completers
from flows.commands.parameters import NARROWEST, Debug, Flag, RunPath
from robots.errors import HandoffError

if TYPE_CHECKING:
    from flows.claims.due import DueSeed, RepeatedSeed

RUNS = "runs"
"""Folder of runs of a claim, unless another one is named."""


def explain(
    subject: Annotated[Path, Parameter(completer=completers.runs_and_artifacts)],
    /,
    *,
    verify: Flag = False,
    page: Path | None = None,
    openlineage: Path | None = None,
    mlflow: str | None = None,
    debug: Debug = False,
) -> None:
    """Print the lineage of an artifact, or of a whole run, back to the demonstrations.

    Args:
        subject: Name of a run, its folder, or a record in its history, e.g. demo; or an artifact
            folder or a file inside one, e.g. runs/demo/gate.
        verify: Re-hash every file of every artifact in the lineage.
        page: HTML page to write; it loads nothing.
        openlineage: File to write with the events of a run, one JSON object a line, as OpenLineage
            defines them.
        mlflow: Address of an MLflow server or database to which the run is written, e.g.
            http://127.0.0.1:5000 or sqlite:///mlflow.db.

    Examples:
        handoff explain demo
        handoff explain demo --openlineage events.jsonl
        handoff explain demo --mlflow sqlite:///mlflow.db
        handoff explain runs/demo/gate
        handoff explain runs/demo/bundle/policy.onnx --verify
        handoff explain runs/demo/gate --page lineage.html
    """
    from flows.reports.explain import explain as lineage

    _print(lineage(subject, verify=verify))
    if page is not None:
        from flows.reports.lineage import write_page

        _print(f"page    {write_page(subject, page)}")
    if openlineage is not None:
        from flows.reports.run_records.openlineage import write_events

        _print(f"events  {write_events(subject, openlineage)}")
    if mlflow is not None:
        from flows.reports.run_records.mlflow_export import write_mlflow

        _print(f"mlflow  {write_mlflow(subject, mlflow)}")


def reproduce(
    run: Annotated[RunPath | None, Parameter(show_default=False)] = None,
    /,
    *,
    claim: Annotated[
        tuple[str, ...], Parameter(completer=completers.claims, show_default=False)
    ] = (),
    within: Annotated[float | None, Parameter(validator=Number(gt=0.0, lt=math.inf))] = None,
    seed: Annotated[tuple[int, ...], Parameter(show_default=False)] = (),
    runs: Annotated[str | None, Parameter(show_default=False)] = None,
    out: Path | None = None,
    tolerance: Annotated[float | None, Parameter(validator=Number(gte=0.0))] = None,
    anyway: Flag = False,
    debug: Debug = False,
) -> None:
    """Run a finished run again, or the recipe of a claim of the results, and compare.

    Of a run, digests and metrics are compared; stages in which a person took part are kept. Of a
    claim, figures and bars, start by start where the episodes are recorded; what is in the cache
    of the folder of runs is used. The exit code is 1 if a stage differs, or a figure misses a bar
    that it met in the record, or a claim failed.

    Args:
        claim: Instead of a run: name of a claim ('handoff list claims'), or path of a YAML file;
            may be repeated.
        within: Minutes. Instead of a run: repeats the claims, or those that --claim names, that
            were not repeated for longest, one seed each, as many as fit.
        seed: Learning seed of the claim, may be repeated; default: all that it has.
        runs: Folder of runs for a claim; default: runs.
        out: Folder of the repetition of a run; default: a new one in the folder of the run.
        tolerance: Largest relative difference of a metric of a run where the digests differ;
            default: 0.05.
        anyway: Repeat the run although code or environment differ.

    Examples:
        handoff reproduce demo
        handoff reproduce runs/demo --tolerance 0.05 --out runs/repeated
        handoff reproduce --claim reach_fast_td3 --seed 0
        handoff reproduce --within 110
    """
    if claim or within is not None:
        if run is not None or out is not None or tolerance is not None or anyway:
            raise HandoffError(
                "reproduce: --claim and --within take no run, no --out, no --tolerance and no --anyway."
            )
        if within is not None:
            if seed:
                raise HandoffError("reproduce: --within chooses the seeds. Leave out --seed.")
            _reproduce_due(within, claim, runs or RUNS, debug=debug)
            return
        for name in dict.fromkeys(claim):
            _reproduce_claim(name, seed, runs or RUNS, debug=debug)
        return
    if run is None:
        raise HandoffError("reproduce: name a run, a claim by --claim, or a time by --within.")
    if seed:
        raise HandoffError("reproduce: --seed is for a claim; a run has the seeds of its record.")
    if runs is not None:
        raise HandoffError("reproduce: --runs is for a claim; a run is named by its folder.")
    from flows.reports.reproduce import TOLERANCE
    from flows.reports.reproduce import reproduce as repeat

    result = repeat(
        run, out, tolerance=TOLERANCE if tolerance is None else tolerance, anyway=anyway
    )
    _print(result.text)
    if not result.ok:
        differing = [stage.name for stage in result.stages if stage.status == "differs"]
        raise HandoffError(f"reproduce: {', '.join(differing)} differ; see {result.folder}.")


def _reproduce_claim(name: str, seeds: tuple[int, ...], runs: str, *, debug: bool) -> None:
    from flows.claims.claim import claim_file, statement
    from flows.claims.comparison import HEADINGS, PAGE
    from flows.claims.outcomes import recorded_outcomes
    from flows.claims.repeat import repeat_claim, results_folder

    _print(f"claim     {statement(name)}")
    for seed, entry in sorted(recorded_outcomes(name).items()):
        if not seeds or seed in seeds:
            took = f"{entry.minutes:g} minutes on {entry.processor or 'an unknown processor'}"
            _print(f"recorded  seed {seed}: {took}, {entry.date}, commit {entry.commit or '—'}")
    result = repeat_claim(name, seeds, runs=runs, debug=debug)
    _print_table(HEADINGS, result.rows)
    _print(result.verdict)
    page = results_folder(runs, claim_file(name).stem) / PAGE
    _print(f"page      {page}")
    if result.lost:
        raise HandoffError(f"reproduce: claim {result.name}: {', '.join(result.lost)}; see {page}.")


def _reproduce_due(minutes: float, names: tuple[str, ...], runs: str, *, debug: bool) -> None:
    from flows.claims.due import HEADINGS, repeat_due

    def report(seed: RepeatedSeed) -> None:
        if seed.status != "postponed":
            _print(f"{seed.claim}, seed {seed.seed}: {seed.minutes:.1f} min, {seed.result}")

    def begins(seed: DueSeed) -> None:
        _print(f"{seed.claim}, seed {seed.seed}: begins, about {seed.expected:.1f} min expected")

    done = repeat_due(minutes, names, runs=runs, report=report, begins=begins, debug=debug)
    _print_table(HEADINGS, [seed.row for seed in done])
    if all(seed.status == "postponed" for seed in done):
        least = min(seed.expected for seed in done)
        _print(
            f"Nothing fits in {minutes:g} min: the shortest is expected to take {least:.1f} min."
        )
    bad = [f"{seed.claim} (seed {seed.seed})" for seed in done if seed.status in ("lost", "failed")]
    if bad:
        raise HandoffError(f"reproduce: not reproduced: {', '.join(bad)}.")


def _print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    grid = Table(box=None, header_style="bold", pad_edge=False)
    for heading in headings:
        grid.add_column(heading)
    for row in rows:
        grid.add_row(*row)
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, NARROWEST)
    console.print(grid)


def fetch(place: str, /, *, debug: Debug = False) -> None:
    """Fetch an artifact of a storage, with all that it was computed from, and print its folder.

    Args:
        place: s3://BUCKET/PREFIX/RUN/STAGE, or a path in the working copy, such as a run's stage.

    Examples:
        handoff fetch s3://lab/push_t/demo/gate
    """
    from rich.console import Console

    from flows.storage.shared_runs import fetch_lineage

    with Console(stderr=True).status("fetching") as status:
        path = fetch_lineage(
            place, lambda done, total, note="": status.update(f"{note} {done} of {total}")
        )
    _print(f"fetched  {path}")


def gc(
    *,
    runs: str = "runs",
    older_than: Annotated[float, Parameter(validator=Number(gte=0.0))] = 7.0,
    keep_last: Annotated[int, Parameter(validator=Number(gte=0))] = 0,
    recording: Annotated[tuple[str, ...], Parameter(show_default=False)] = (),
    dry_run: Flag = False,
    debug: Debug = False,
) -> None:
    """Delete the artifacts that no run refers to, and what interrupted stages and programs left.

    Everything is named before it is deleted. What a run's folder links to is kept, with all that
    it was computed from; so is what a run is writing, and what a person has recorded. A storage
    keeps all that it has.

    Args:
        runs: Folder of runs, or the address of a storage, whose working copy is meant.
        older_than: Smallest age of what is deleted [days].
        keep_last: Number of the newest artifacts of every stage that are kept in any case.
        recording: Name of an artifact that a person recorded and that is not kept; may be repeated.
        dry_run: Name what would be deleted, and delete nothing.

    Examples:
        handoff gc --dry-run
        handoff gc --runs /data/runs --older-than 30 --keep-last 2
    """
    from flows.garbage import collect
    from flows.storage.address import runs_folder

    collect(
        runs_folder(runs),
        _print,
        older_than=older_than,
        keep_last=keep_last,
        recordings=recording,
        dry_run=dry_run,
    )


def _print(text: str) -> None:
    from rich.console import Console

    Console().print(text, highlight=False, soft_wrap=True, markup=False)
