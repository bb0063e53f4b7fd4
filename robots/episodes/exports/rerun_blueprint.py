"""Arranges the views of an episode in the viewer Rerun."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from robots.episodes.exports.viewer_fields import PROPOSED, field_kind
from robots.language.text import INSTRUCTION
from robots.spec import FieldSpec

ACTION = "action"
MOST_IN_A_COLUMN = 4
"""Largest number of views of curves that are in one column."""


def blueprint(fields: Mapping[str, FieldSpec], events: str, metadata: str) -> Any:
    """Cameras and texts at the left, curves at the right; what a policy proposed and what was
    executed are in one view, and fields with a common first part of their names in one tab.

    Args:
        fields: fields by the name of their entity.
        events: entity of the events.
        metadata: entity of the metadata.
    """
    import rerun.blueprint as rrb

    cameras = [
        rrb.Spatial2DView(origin=f"/{name}", name=name)
        for name, spec in fields.items()
        if field_kind(spec) in ("picture", "depth")
    ]
    texts = rrb.Tabs(
        rrb.TextLogView(origin=f"/{events}", name="events"),
        rrb.TextDocumentView(origin=f"/{INSTRUCTION}", name=INSTRUCTION),
        rrb.TextDocumentView(origin=f"/{metadata}", name="metadata"),
    )
    left = rrb.Vertical(rrb.Grid(*cameras), texts, row_shares=[3, 1]) if cameras else texts
    return rrb.Blueprint(
        rrb.Horizontal(left, _curves(fields), column_shares=[2, 3]),
        rrb.TimePanel(timeline="time"),
    )


def _curves(fields: Mapping[str, FieldSpec]) -> Any:
    """A tab per group of fields, each with a view per field."""
    import rerun.blueprint as rrb

    proposed = [name for name in PROPOSED if name in fields]
    groups: dict[str, list[Any]] = {}
    for name, spec in fields.items():
        if field_kind(spec) != "numbers" or not prod(spec.shape) or name in proposed:
            continue
        shown = [name, *proposed] if name == ACTION else [name]
        unit = "" if spec.unit == "1" else f" [{spec.unit}]"
        view = rrb.TimeSeriesView(
            origin="/", contents=[f"/{entity}" for entity in shown], name=f"{name}{unit}"
        )
        group = name.partition("/")[0] if "/" in name else "steps"
        groups.setdefault(group, []).append(view)
    tabs = [
        rrb.Grid(*views, name=group, grid_columns=1 if len(views) <= MOST_IN_A_COLUMN else 2)
        for group, views in groups.items()
    ]
    return rrb.Tabs(*tabs)
