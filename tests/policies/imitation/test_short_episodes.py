"""Episodes that are shorter than a chunk needs, and pictures that are too large for one pass."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from policies.data.frames import FrameStorage
from policies.data.windows import episode_windows, shortest_episode
from policies.imitation import validation
from policies.imitation.config import PretrainConfig
from policies.imitation.objective import prepare
from policies.policy_config import ActConfig
from robots.episodes.write_episodes import write_episodes
from robots.errors import HandoffError
from tests.policies.conftest import TINY

CPU = torch.device("cpu")


def store(folder: Path, lengths: list[int]) -> Path:
    rng = np.random.default_rng(0)
    episodes = [
        {
            "q": rng.normal(size=(length, 3)).astype(np.float32),
            "action": rng.normal(size=(length, 3)).astype(np.float32),
        }
        for length in lengths
    ]
    write_episodes(folder / "store.zarr", episodes, task="fold", rate_hz=10.0)
    return folder


def config() -> PretrainConfig:
    policy = replace(TINY, observation_fields=("q",), anchor_field=None)
    return replace(PretrainConfig(policy=policy), validation_fraction=0.0)


@pytest.mark.parametrize("sizes", [(1, 8, 8), (2, 16, 8), (2, 8, 3), (1, 20, 10)])
def test_the_shortest_episode_has_one_window_and_a_shorter_one_none(
    sizes: tuple[int, int, int],
) -> None:
    fewest = shortest_episode(*sizes)
    assert len(episode_windows(fewest, *sizes).episode_N) >= 1
    assert fewest == 1 or len(episode_windows(fewest - 1, *sizes).episode_N) == 0


def test_episodes_without_a_window_are_counted(tmp_path: Path) -> None:
    fewest = shortest_episode(*config().policy.window)
    demos = store(tmp_path, [fewest - 1, 40, fewest, 30])
    assert prepare(config(), demos, FrameStorage(), CPU).short_episodes == 1


def test_only_such_episodes_are_one_line_that_names_the_option(tmp_path: Path) -> None:
    fewest = shortest_episode(*config().policy.window)
    demos = store(tmp_path, [fewest - 1] * 3)
    with pytest.raises(
        HandoffError, match=r"all 3 episodes .* shorter than .*Lower policy.horizon"
    ):
        prepare(config(), demos, FrameStorage(), CPU)


def test_act_learns_from_every_step_as_published() -> None:
    act = ActConfig(observation_fields=("q",), horizon=20, n_action_steps=10)
    index = episode_windows(7, *act.window)
    assert sorted(index.observation_NT[:, -1].tolist()) == list(range(7))
    assert index.padded_NH[-1].sum() == 19


def test_large_pictures_are_validated_in_small_parts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    demos = store(tmp_path, [40, 30])
    setup = prepare(replace(config(), validation_fraction=0.5), demos, FrameStorage(), CPU)
    held_out = setup.split.held_out
    monkeypatch.setattr(type(held_out), "frame_bytes", validation._FRAMES // 5)
    reported: list[tuple[int, int]] = []
    loss = validation.validation_loss(
        setup.module, held_out, 0, lambda done, total, note="": reported.append((done, total))
    )
    assert np.isfinite(loss)
    assert reported == [(first, len(held_out)) for first in range(0, len(held_out), 5)]
