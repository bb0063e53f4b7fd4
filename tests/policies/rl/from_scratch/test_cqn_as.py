"""CQN-AS from scratch: what it leaves, and what it goes on from after SIGKILL."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from policies.load import load_module, load_policy
from policies.networks.coarse_to_fine.config import CoarseToFineConfig
from policies.policy_config import CoarseToFinePolicyConfig
from policies.rl.coarse_to_fine.config import CqnAsConfig
from policies.rl.coarse_to_fine.learner import CqnAs
from policies.rl.from_scratch.config import CqnAsAlgorithm, FromScratchConfig
from policies.rl.from_scratch.experience.cqn_as import CqnAsExperience
from policies.rl.from_scratch.off_policy import ReplayRun
from policies.rl.from_scratch.train import check_demonstrations, check_resident, make_run
from policies.rl.from_scratch.train import train_from_scratch as train
from robots.config import validate
from robots.errors import HandoffError
from robots.interfaces import Progress, no_progress
from tests.policies.kill import run_until_killed
from tests.policies.rl.seeing import write_walks
from tests.policies.rl.walking import LIMIT, Walking, solved_share

SMALL = CqnAsAlgorithm(
    learner=CqnAsConfig(
        critic=CoarseToFineConfig(
            levels=2, bins=5, atoms=11, low=-6.0, high=0.0, features=8, units=16
        ),
        horizon=3,
        learning_rate=3e-3,
        tau=0.1,
    ),
    collections=40,
    batch_size=16,
    # Fewer than the steps made, so that the oldest are overwritten.
    capacity=20,
    discount=0.9,
    updates_per_step=0.5,
    learning_starts=3,
    random_collections=2,
    save_every=5,
)


def config_of(algorithm: CqnAsAlgorithm) -> FromScratchConfig:
    return FromScratchConfig(algorithm=algorithm, fields=("place",), first_seed=0)


def learned(
    algorithm: CqnAsAlgorithm, saves: bool, demos: Path, out: Path, progress: Progress
) -> dict[str, Any]:
    make = partial(Walking, 3, saves)
    return train(config_of(algorithm), "walking", make, out, progress, demos=demos)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_module(folder)[0].state_dict()


@pytest.fixture(scope="module")
def walks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_walks(tmp_path_factory.mktemp("walks") / "demos") / "store.zarr"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, walks: Path) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("whole")
    return out, learned(SMALL, True, walks, out, no_progress)


def test_updates_keep_their_ratio_to_the_steps_of_all_environments(
    whole: tuple[Path, dict[str, Any]],
) -> None:
    # 37 collections of three environments after the start, half an update per step.
    figures = whole[1]
    assert (figures["steps"], figures["updates"], figures["policy_updates"]) == (120, 55, 55)


# In the middle of episodes, and after the oldest steps were overwritten.
@pytest.mark.parametrize("call", [3, 7])
def test_a_killed_run_ends_with_the_weights_it_would_have_had(
    call: int, whole: tuple[Path, dict[str, Any]], walks: Path, tmp_path: Path
) -> None:
    run_until_killed(call, learned, SMALL, True, walks, tmp_path)
    learned(SMALL, True, walks, tmp_path, no_progress)
    expected, got = weights(whole[0]), weights(tmp_path)
    assert expected.keys() == got.keys()
    assert all(torch.equal(expected[name], got[name]) for name in expected)


def test_environments_that_cannot_be_saved_begin_new_episodes(walks: Path, tmp_path: Path) -> None:
    run_until_killed(3, learned, SMALL, False, walks, tmp_path)
    run = make_run(config_of(SMALL), Walking(3, saves=False), tmp_path, walks)
    assert isinstance(run, ReplayRun)
    run.resume()
    run.learn(no_progress)
    # An episode that was abandoned would go on under another number, longer than the time limit.
    assert isinstance(run._experience, CqnAsExperience)
    replay = run._experience.replay
    order = np.argsort(replay.columns["serial"][: len(replay)])
    stored, numbers = replay.columns["episode"][order], replay.columns["number"][order]
    for episode in np.unique(stored):
        steps = numbers[stored == episode]
        assert len(steps) <= LIMIT
        assert np.array_equal(steps, steps[0] + np.arange(len(steps)))
    run.run.env.env.close()
    run.run.resumable.close()


def test_the_saved_policy_predicts_the_sequences_of_the_learner(
    walks: Path, tmp_path: Path
) -> None:
    run = make_run(config_of(SMALL), Walking(3), tmp_path, walks)
    assert isinstance(run, ReplayRun)
    run.resume()
    run.learn(no_progress)
    run.run.save_policy(run.actor(), "walking", "")
    run.run.env.env.close()
    run.run.resumable.close()
    assert isinstance(run.learner, CqnAs)
    place = np.array([[0.5], [-1.5], [1.0]], np.float32)
    answered = load_policy(tmp_path)(place[:, None], np.zeros((3, 3, 1)))
    np.testing.assert_allclose(answered, run.learner.act(place), atol=1e-6)
    model = load_module(tmp_path)[1].model
    assert isinstance(model, CoarseToFinePolicyConfig)
    assert (model.horizon, model.ensemble) == (3, SMALL.learner.temporal_ensemble)


def test_it_learns_to_walk_to_the_middle(walks: Path, tmp_path: Path) -> None:
    """From starts on both sides, whatever their distance."""
    algorithm = replace(
        SMALL, collections=250, capacity=250, batch_size=64, updates_per_step=0.5, save_every=125
    )
    learned(algorithm, True, walks, tmp_path, no_progress)
    assert solved_share(tmp_path, horizon=3) > 0.9


def test_missing_demonstrations_and_environments_on_a_device_are_refused() -> None:
    with pytest.raises(HandoffError, match="algorithm cqn_as needs demonstrations"):
        check_demonstrations(config_of(SMALL), given=False)
    with pytest.raises(HandoffError, match=r"not cqn_as: it acts on the host"):
        check_resident(config_of(SMALL))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"demo_share": 1.0}, r"'algorithm.demo_share' is 1"),
        ({"learner": {"critic": {"bins": 1}}}, r"'algorithm.learner.critic.bins' is 1"),
        ({"learner": {"critic": {"low": 2.0}}}, "expected low < high"),
        ({"learner": {"tau": 0.0}}, r"'algorithm.learner.tau' is 0"),
    ],
)
def test_options_out_of_range_are_refused_by_path(options: dict[str, Any], message: str) -> None:
    with pytest.raises(HandoffError, match=message):
        validate(FromScratchConfig, {"algorithm": {"kind": "cqn_as", **options}})
