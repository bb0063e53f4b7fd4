"""Defines the commands about artifacts: `explain`."""

from __future__ import annotations

from pathlib import Path

from flows.commands.parameters import Debug, Flag


def explain(
    artifact: Path,
    /,
    *,
    verify: Flag = False,
    debug: Debug = False,
) -> None:
    """Print the lineage of an artifact back to the demonstrations.

    Args:
        artifact: Artifact folder, or a file inside one, e.g. runs/demo/gate.
        verify: Re-hash every file of every artifact in the lineage.

    Examples:
        handoff explain runs/demo/gate
        handoff explain runs/demo/bundle/policy.onnx --verify
    """
    from flows.reports.explain import explain as lineage

    text = lineage(artifact, verify=verify)
    _print(text)


def _print(text: str) -> None:
    from rich.console import Console

    Console().print(text, highlight=False, soft_wrap=True, markup=False)
