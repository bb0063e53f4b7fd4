"""The stage `export` takes what an action means from the task of the demonstrations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flows.stages.release.export import _with_steps
from policies.export.onnx import ExportConfig
from robots.control.actions import CartesianDelta
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.spec import FieldSpec
from tests.flows.recipe_stages import declared


def demonstrations(folder: Path, task: str) -> Path:
    """A store of one step of the task."""
    stream = StreamSpec(rate_hz=20.0, fields={"action": FieldSpec(shape=(3,))})
    schema = EpisodeSchema(name=task, streams={"policy": stream}, robot="fr3")
    folder.mkdir()
    with EpisodeStore.create(folder / "store.zarr", schema) as store:
        store.append({"policy": {"action": np.zeros((1, 3), np.float32)}}, {})
    return folder


@pytest.mark.parametrize(
    ("task", "interface"),
    [("reach", "cartesian_delta"), ("gym_pusht/PushT-v0", "pd_target"), ("mine", "pd_target")],
)
def test_the_interface_is_that_of_the_task(task: str, interface: str, tmp_path: Path) -> None:
    found = _with_steps(ExportConfig(), demonstrations(tmp_path / "demos", task))
    assert found.action_interface == interface
    assert isinstance(found.steps, CartesianDelta) == (interface == "cartesian_delta")


def test_steps_that_are_given_are_kept(tmp_path: Path) -> None:
    steps = CartesianDelta(translation=0.01)
    demos = demonstrations(tmp_path / "demos", "reach")
    assert _with_steps(ExportConfig(steps=steps), demos).steps == steps


def test_positions_of_a_task_with_steps_are_refused(tmp_path: Path) -> None:
    demos = demonstrations(tmp_path / "demos", "reach")
    with pytest.raises(HandoffError, match="Cartesian steps; leave it out, or give 'cartesian_d"):
        _with_steps(ExportConfig(action_interface="pd_target"), demos)


def test_an_unknown_interface_is_refused_by_plan() -> None:
    with pytest.raises(HandoffError, match=r"'bundle.action_interface' is 'cartesian_dleta'"):
        declared("demo", ["bundle.action_interface=cartesian_dleta"])
