"""MR.Q from scratch: what it leaves, and what it goes on from after SIGKILL."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from policies.load import load_module, load_policy
from policies.rl.from_scratch.config import FromScratchConfig, MrqAlgorithm
from policies.rl.from_scratch.learners import exported_actor
from policies.rl.from_scratch.off_policy import ReplayRun
from policies.rl.from_scratch.run import CURVE
from policies.rl.from_scratch.train import check_demonstrations, check_resident, make_run
from policies.rl.from_scratch.train import train_from_scratch as train
from policies.rl.mrq.config import MrqConfig, MrqEncoderConfig
from policies.rl.mrq.learner import Mrq
from policies.rl.off_policy.fast_td3_config import PerEnvNoiseConfig
from robots.config import validate
from robots.errors import HandoffError
from robots.interfaces import Progress, no_progress
from tests.policies.kill import run_until_killed
from tests.policies.rl.walking import Walking, solved_share

SMALL = MrqAlgorithm(
    learner=MrqConfig(
        encoder=MrqEncoderConfig(
            state_size=16, action_size=8, pair_size=16, units=16, learning_rate=1e-3
        ),
        value_units=16,
        policy_units=16,
        value_learning_rate=3e-3,
        policy_learning_rate=3e-3,
        target_every=20,
        noise=PerEnvNoiseConfig(low=0.1, high=0.8),
    ),
    collections=40,
    batch_size=16,
    # Fewer than the steps made, so that the oldest are overwritten.
    capacity=25,
    discount=0.9,
    updates_per_step=0.5,
    learning_starts=3,
    random_collections=2,
    save_every=5,
)


def config_of(algorithm: MrqAlgorithm) -> FromScratchConfig:
    return FromScratchConfig(algorithm=algorithm, fields=("place",), first_seed=0)


def learned(algorithm: MrqAlgorithm, out: Path, progress: Progress) -> dict[str, Any]:
    return train(config_of(algorithm), "walking", partial(Walking, 3), out, progress)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_module(folder)[0].state_dict()


def curve(out: Path) -> list[dict[str, float]]:
    entries = [json.loads(line) for line in (out / CURVE).read_text().splitlines()]
    return [
        {name: value for name, value in entry.items() if name != "cpu_seconds"} for entry in entries
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("whole")
    return out, learned(SMALL, out, no_progress)


def test_updates_keep_their_ratio_to_the_steps_of_all_environments(
    whole: tuple[Path, dict[str, Any]],
) -> None:
    out, metrics = whole
    # 37 collections of three environments after the start, half an update per step.
    assert (metrics["steps"], metrics["updates"], metrics["policy_updates"]) == (120, 55, 55)
    assert {"dynamics_loss", "reward_loss", "terminal_loss", "reward_scale"} <= curve(out)[
        -1
    ].keys()


# Between two synchronisations of the targets, and after the oldest steps were overwritten.
@pytest.mark.parametrize("call", [3, 7])
def test_a_killed_run_ends_with_the_weights_it_would_have_had(
    call: int, whole: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    run_until_killed(call, learned, SMALL, tmp_path)
    assert curve(tmp_path) == curve(whole[0])[:call]
    learned(SMALL, tmp_path, no_progress)
    expected, got = weights(whole[0]), weights(tmp_path)
    assert expected.keys() == got.keys()
    assert all(torch.equal(expected[name], got[name]) for name in expected)
    assert curve(tmp_path) == curve(whole[0])


def test_the_saved_policy_acts_as_the_learner_without_noise(tmp_path: Path) -> None:
    run = make_run(config_of(SMALL), Walking(3), tmp_path, None)
    assert isinstance(run, ReplayRun)
    run.resume()
    run.learn(no_progress)
    run.run.save_policy(run.actor(), "walking", "")
    run.run.env.env.close()
    run.run.resumable.close()
    assert isinstance(run.learner, Mrq)
    place = np.array([[0.5], [-1.5], [1.0]], np.float32)
    expected = run.learner.act(place)
    answered = load_policy(tmp_path)(place[:, None], np.zeros((3, 1, 1)))[:, 0]
    np.testing.assert_allclose(answered, expected, atol=1e-5)
    assert len({float(action) for action in answered[:, 0]}) == 3
    assert exported_actor(run.learner)[0].actor.layers == (1, 16, 16, 16, 16, 16, 1)


def test_it_learns_to_walk_to_the_middle(tmp_path: Path) -> None:
    """From starts on both sides, whatever their distance; random actions solve far fewer."""
    algorithm = replace(
        SMALL, collections=250, capacity=250, batch_size=64, updates_per_step=1.0, save_every=125
    )
    learned(algorithm, tmp_path, no_progress)
    assert solved_share(tmp_path) > 0.9


def test_weights_that_are_not_finite_stop_it_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Mrq.update

    def lost(self: Mrq, batch: Any) -> Any:
        made = real(self, batch)
        return made._replace(metrics={"critic_loss": torch.tensor(torch.inf)})

    monkeypatch.setattr(Mrq, "update", lost)
    with pytest.raises(HandoffError, match=r"\['critic_loss'\] not finite after 5 collections"):
        learned(SMALL, tmp_path, no_progress)


def test_demonstrations_and_environments_on_a_device_are_refused() -> None:
    with pytest.raises(HandoffError, match="algorithm mrq reads no demonstrations"):
        check_demonstrations(config_of(SMALL), given=True)
    with pytest.raises(HandoffError, match=r"not mrq: it acts on the host"):
        check_resident(config_of(SMALL))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"updates_per_step": 0}, r"'algorithm.updates_per_step' is 0"),
        ({"updates_per_collection": 2}, r"unknown key 'algorithm.updates_per_collection'"),
        ({"learner": {"encoder": {"bins": 1}}}, r"'algorithm.learner.encoder.bins' is 1"),
        ({"learner": {"encoder": {"high": 100.0}}}, r"'algorithm.learner.encoder.high' is 100"),
        ({"learner": {"encoder": {"low": 2.0, "high": 1.0}}}, "expected low < high"),
        ({"learner": {"priorities": {"floor": 0.0}}}, r"'algorithm.learner.priorities.floor' is 0"),
    ],
)
def test_options_out_of_range_are_refused_by_path(options: dict[str, Any], message: str) -> None:
    with pytest.raises(HandoffError, match=message):
        validate(FromScratchConfig, {"algorithm": {"kind": "mrq", **options}})
