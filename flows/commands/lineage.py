"""Defines the commands about artifacts: `explain`, `reproduce`, `fetch`, `gc`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from flows.commands import completers
from flows.commands.parameters import Debug, Flag, RunPath
from robots.errors import HandoffError


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
    run: RunPath,
    /,
    *,
    out: Path | None = None,
    tolerance: Annotated[float, Parameter(validator=Number(gte=0.0))] = 0.05,
    anyway: Flag = False,
    debug: Debug = False,
) -> None:
    """Run a finished run again, and compare digests and metrics with the recorded ones.

    Stages in which a person took part are kept. The exit code is 1 if a stage differs.

    Args:
        out: Folder of the repetition; default: a new one in the folder of the run.
        tolerance: Largest relative difference of a metric where the digests differ.
        anyway: Repeat the run although code or environment differ.

    Examples:
        handoff reproduce demo
        handoff reproduce runs/demo --tolerance 0.05 --out runs/repeated
    """
    from flows.reports.reproduce import reproduce as repeat

    result = repeat(run, out, tolerance=tolerance, anyway=anyway)
    _print(result.text)
    if not result.ok:
        differing = [stage.name for stage in result.stages if stage.status == "differs"]
        raise HandoffError(f"reproduce: {', '.join(differing)} differ; see {result.folder}.")


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
