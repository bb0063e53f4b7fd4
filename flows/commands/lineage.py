"""Defines the commands about artifacts: `explain`, `reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from flows.commands import completers
from flows.commands.parameters import Debug, Flag, RunPath
from robots.errors import HandoffError


def explain(
    artifact: Annotated[Path, Parameter(completer=completers.artifacts)],
    /,
    *,
    verify: Flag = False,
    page: Path | None = None,
    debug: Debug = False,
) -> None:
    """Print the lineage of an artifact back to the demonstrations.

    Args:
        artifact: Artifact folder, or a file inside one, e.g. runs/demo/gate.
        verify: Re-hash every file of every artifact in the lineage.
        page: HTML page to write; it loads nothing.

    Examples:
        handoff explain runs/demo/gate
        handoff explain runs/demo/bundle/policy.onnx --verify
        handoff explain runs/demo/gate --page lineage.html
    """
    from flows.reports.explain import explain as lineage

    _print(lineage(artifact, verify=verify))
    if page is not None:
        from flows.reports.lineage import write_page

        _print(f"page    {write_page(artifact, page)}")


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


def _print(text: str) -> None:
    from rich.console import Console

    Console().print(text, highlight=False, soft_wrap=True, markup=False)
