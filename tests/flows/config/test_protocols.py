"""Protocol files are found by name or path, and read."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flows.config.files import available
from flows.config.protocols import push_t_published, read_protocol
from robots.errors import HandoffError
from sim.engines.isaac_lab import OWN_TASKS
from sim.evaluation.evaluate import make_env
from sim.evaluation.protocol import ScoreRule
from tests.sim.servers.made_venvs import venv_folder

SERVED = {"gym_hil_pick_cube": "gym_hil", "metaworld_pick_place": "metaworld"}
"""Virtual environments of the protocols whose environments need one of their own."""
MARKS = {
    **dict.fromkeys(
        SERVED, (pytest.mark.peers, pytest.mark.needs("index"), pytest.mark.timeout(600))
    ),
    "maniskill_pick_cube": (pytest.mark.needs("maniskill"),),
    # Its kernels are compiled first.
    "warp_pick_cube": (pytest.mark.needs("warp"), pytest.mark.nightly, pytest.mark.timeout(900)),
}
"""Marks of the protocols whose engines are not part of a laptop install."""
ISAAC_LAB = tuple(f"isaaclab_{task}" for task in OWN_TASKS)
"""Protocols of Isaac Lab, whose environments are made in `tests.sim.servers.test_isaac_tasks`."""
BENCHMARK = ("push_t_published", "push_t_image")
"""Protocols whose environments have no time limit of their own."""


@pytest.mark.parametrize("name", available("protocol"))
def test_every_protocol_file_is_valid_and_has_its_name(name: str) -> None:
    assert read_protocol(name).name == name


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=MARKS.get(name, ()),
        )
        for name in available("protocol")
        if name not in ISAAC_LAB
    ],
)
def test_environments_of_every_protocol_file_can_be_made_and_freeze(name: str) -> None:
    protocol = replace(read_protocol(name), max_steps=1)
    if name in SERVED:
        server = {**protocol.options["server"], "venv": os.fspath(venv_folder(SERVED[name]))}
        protocol = replace(protocol, options={**protocol.options, "server": server})
    env = make_env(protocol, 1)
    env.reset([protocol.first_seed])
    steps = [env.step(np.zeros((1, env.action_spec.size))) for _ in range(2)]
    assert [step.executed.tolist() for step in steps] == (
        [[1], [1]] if name in BENCHMARK else [[1], [0]]
    )
    env.close()


def test_published_push_t_is_200_episodes_of_300_steps_from_seed_100000() -> None:
    protocol = push_t_published()
    assert (protocol.first_seed, protocol.episodes, protocol.max_steps) == (100_000, 200, 300)
    assert protocol.score == ScoreRule(of="reward", over="max")
    assert protocol.packages == ("gym-pusht", "pymunk")


def test_protocol_of_ones_own_is_read_by_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "{name: mine, engine: mujoco, task: reach, max_steps: 7, chunk: {n_action_steps: 4}}"
    )
    protocol = read_protocol(str(path))
    assert (protocol.max_steps, protocol.chunk.n_action_steps, protocol.chunk.horizon) == (
        7,
        4,
        None,
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{name: mine, engine: mujoco, task: reach, max_step: 7}",
            r"unknown key 'mine\.yaml\.max_step'",
        ),
        (
            "{name: mine, engine: mojoco, task: reach, max_steps: 7}",
            r"'mine\.yaml: engine' is 'mojoco'",
        ),
        ("- a\n- b", "holds a list"),
        ("{a: ]", "not YAML"),
    ],
)
def test_damaged_file_is_refused_by_the_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(HandoffError, match=message):
        read_protocol(str(path))


def test_misspelt_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(HandoffError, match="did you mean 'push_t_published'"):
        read_protocol("push_t_publishd")
