"""Implements `handoff tune`: tunes the simulated arm to a store of recorded motions, outside a
recipe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flows.runner.artifact import tree_digest
from robots.errors import HandoffError


def tune_command(store: Path, out: Path, overrides: Sequence[str] = ()) -> None:
    """Tunes the arm to the motions in `store`, writes `dynamics.json` and `report.html` to `out`,
    and prints values, intervals and what the motions do not determine. An interrupted search
    resumes from `out`.

    Args:
        store: episode store, or the folder of an artifact that has one.
        out: folder of the results.
        overrides: options of the stage `tune`, `KEY=value`, e.g. `parameters.kind=per_joint`.

    Raises:
        HandoffError: no such store, unknown options, or an error of `fit_store`.
    """
    import json

    from flows.config.options import build
    from flows.config.overrides import parse_overrides, set_value
    from flows.runner.display import Display
    from sim.identification.config import TuneStoreConfig
    from sim.identification.fit_store import fit_store
    from sim.identification.report import FIGURES, REPORT

    path = store / "store.zarr" if (store / "store.zarr").is_dir() else store
    if not path.is_dir():
        raise HandoffError(f"tune: {store}: no such episode store. Is the path right?")
    values: dict[str, object] = {}
    for override in parse_overrides(overrides):
        set_value(values, override.keys, override.value)
    config = build(TuneStoreConfig, values, "")
    out.mkdir(parents=True, exist_ok=True)
    with Display() as display:
        progress = display.started("tune")
        fit_store(config, path, out, progress, tree_digest(path))
        display.finished("tune", "")
    for line in json.loads((out / FIGURES).read_text())["lines"]:
        _print_line(line)
    _print_line(f"report    {out / REPORT}")


def _print_line(text: str) -> None:
    from rich.console import Console

    Console().print(text, highlight=False, soft_wrap=True, markup=False)
