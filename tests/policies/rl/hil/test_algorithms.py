"""Tests what the algorithms of a correction session put into their buffers and minibatches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from policies.rl.hil.algorithms import LearnerSetup, SessionData, set_up_learner
from policies.rl.hil.config import (
    HgDaggerConfig,
    HilAlgorithm,
    HilJsrlConfig,
    HilReplayConfig,
    HilRlpdConfig,
    HilSerlConfig,
    HilUpdateConfig,
    HilWsrlConfig,
    MixedUpdateConfig,
    RelativeFeature,
    RlifConfig,
)
from policies.rl.hil.hg_dagger import HgDagger
from policies.rl.hil.make_learner import make_learner
from policies.rl.networks.config import MlpSizes
from policies.rl.off_policy.config import (
    GuidanceConfig,
    GuidedSacConfig,
    OnlineConfig,
    SacConfig,
)
from policies.rl.off_policy.online import MinibatchSampler
from policies.rl.off_policy.sac import Sac
from policies.rl.off_policy.sac_bc import GuidedSac
from policies.rl.off_policy.wsrl import wsrl_sac
from policies.rl.replay.config import ReplayConfig
from robots.config import config, to_plain, validate
from robots.errors import HandoffError
from robots.spec import ActionSpec, FieldSpec
from robots.wire.steps import Steps, plain_steps
from tests.policies.rl.offline_state import save_offline

NETWORK = MlpSizes(hidden=(8,), activation="relu")
FIELDS = {"grasp_pose": FieldSpec(shape=(3,)), "goal": FieldSpec(shape=(3,))}
ARM = ActionSpec(low=(-1.0,) * 3, high=(1.0,) * 3, names=("x", "y", "z"))
GRIPPER = replace(ARM, names=("x", "y", "gripper"))
SAC: dict[str, Any] = {"critic": NETWORK, "actor": NETWORK}


@config
class Algorithms:
    """Holds an algorithm, as the options of a stage do."""

    algorithm: HilAlgorithm = HilSerlConfig()
    """The algorithm."""


def demonstration(number: int, rows: int = 5) -> Steps:
    """A demonstration that is solved with its last step."""
    rng = np.random.default_rng(number)
    obs = rng.uniform(0.0, 1.0, (rows, 6))
    last = np.arange(rows) == rows - 1
    action = np.sign(rng.normal(size=(rows, 3)))
    return plain_steps(
        np.full(rows, number), np.arange(rows), obs, action, last, obs + 0.1, last, ~last & last,
        demo=True,
    )  # fmt: skip


def session(action: ActionSpec = ARM, offline: Path | None = None) -> SessionData:
    return SessionData(
        fields=FIELDS,
        action=action,
        demonstrations=[demonstration(0), demonstration(1)],
        relative_features=[RelativeFeature(field="grasp_pose", other="goal")],
        offline=offline,
        seed=4,
    )


def received(rows: int = 6, first: int = 0) -> Steps:
    """An episode in which a person acts in the third and fourth step; it ends unsolved."""
    number = np.arange(first, first + rows)
    obs = np.repeat(number[:, None] / 10.0, 6, axis=1)
    acts = (number == 2) | (number == 3)
    none = np.zeros(rows, bool)
    return plain_steps(
        np.zeros(rows), number, obs, np.zeros((rows, 3)), np.full(rows, 5.0), obs, none,
        number == rows - 1, intervention=acts,
    )  # fmt: skip


def sampled(setup: LearnerSetup) -> Any:
    batches = MinibatchSampler(setup.online, setup.replay, setup.demos)
    return batches(np.random.default_rng(0))


def test_hil_serl_is_the_guided_learner_on_half_demonstrations() -> None:
    guided = GuidedSacConfig(**SAC, guidance=GuidanceConfig(first=50.0, last=10.0, updates=2500))
    algorithm = HilSerlConfig(
        sac=guided,
        replay=HilReplayConfig(n_step=3, timeouts_end=True),
        online=MixedUpdateConfig(minibatches=2, updates_per_step=0.7),
    )
    setup = set_up_learner(algorithm, session())
    data = session()
    expected = make_learner(
        guided,
        data.fields,
        data.action,
        data.demonstrations,
        relative_features=data.relative_features,
        seed=4,
    )
    assert isinstance(setup.learner, GuidedSac)
    ours, theirs = setup.learner.networks.state_dict(), expected.networks.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    assert setup.online == OnlineConfig(minibatches=2, updates_per_step=0.7)
    assert setup.replay.config == ReplayConfig(n_step=3, timeouts_end=True)
    assert setup.demos.config == ReplayConfig(n_step=3, timeouts_end=True, capacity=50_000)
    assert (len(setup.replay), len(setup.demos)) == (0, 10)
    assert setup.relabel is None
    setup.replay.append(received())
    assert sampled(setup).demo_B.sum().item() == 128


def test_rlpd_is_the_same_learner_without_guidance() -> None:
    setup = set_up_learner(HilRlpdConfig(sac=SacConfig(**SAC)), session())
    assert type(setup.learner) is Sac
    assert (len(setup.replay), len(setup.demos), setup.online.demo_share) == (0, 10, 0.5)


def test_rlif_begins_with_demonstrations_that_are_not_rewarded_and_learns_from_takeovers() -> None:
    algorithm = RlifConfig(sac=SacConfig(**SAC), replay=HilReplayConfig(discount=0.5))
    setup = set_up_learner(algorithm, session())
    assert (len(setup.replay), len(setup.demos), setup.online.demo_share) == (10, 0, 0.0)
    assert setup.replay.columns["reward"][:10].tolist() == [0.0] * 10
    assert setup.replay.columns["episode"][:10].tolist() == [-1] * 5 + [-2] * 5
    assert setup.replay.columns["terminated"][:10].tolist() == ([False] * 4 + [True]) * 2
    assert setup.relabel is not None
    setup.replay.append(setup.relabel(received()))
    batch = setup.replay.transitions(np.arange(10, 16))
    # The person takes over at step 2, so step 1 is penalised; the reward of the task, 5, is unused.
    assert batch.reward_B.tolist() == [0.0, -1.0, 0.0, 0.0, 0.0, 0.0]
    # The value continues into the person's steps and beyond the time limit.
    assert batch.discount_B.tolist() == [0.5] * 6


def test_wsrl_begins_with_offline_weights_and_no_data(tmp_path: Path) -> None:
    sac = replace(wsrl_sac(), **SAC)
    data = session()
    offline = make_learner(
        sac,
        FIELDS,
        ARM,
        data.demonstrations,
        relative_features=data.relative_features,
        seed=9,
    )
    save_offline(tmp_path, offline, tuple(FIELDS))
    setup = set_up_learner(HilWsrlConfig(sac=sac), session(offline=tmp_path))
    assert isinstance(setup.learner, Sac)
    ours, theirs = setup.learner.networks.state_dict(), offline.networks.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    assert (len(setup.replay), len(setup.demos), setup.online.demo_share) == (0, 0, 0.0)
    assert setup.online.training_starts == 5000
    with pytest.raises(HandoffError, match="wsrl: no offline policy"):
        set_up_learner(HilWsrlConfig(sac=sac), data)


def test_jsrl_samples_steps_only_unless_a_share_of_demonstrations_is_set() -> None:
    setup = set_up_learner(HilJsrlConfig(sac=SacConfig(**SAC)), session())
    setup.replay.append(received())
    assert type(setup.learner) is Sac
    assert sampled(setup).demo_B.sum().item() == 0


def test_hg_dagger_samples_demonstrations_and_corrections_only() -> None:
    algorithm = HgDaggerConfig(network=NETWORK, cloning_updates=0)
    setup = set_up_learner(algorithm, session(GRIPPER))
    setup.replay.append(received())
    batch = sampled(setup)
    assert batch.demo_B.all()
    assert isinstance(setup.learner, HgDagger)
    assert setup.learner.gripper


def test_hg_dagger_clones_the_demonstrations_before_the_session() -> None:
    configs = [
        HgDaggerConfig(network=NETWORK, cloning_updates=updates, learning_rate=1e-2)
        for updates in (0, 200, 200)
    ]
    untrained, cloned, again = (set_up_learner(one, session()).learner for one in configs)
    rows = demonstration(0)
    errors = [
        float(np.square(learner.act(rows.observation) - rows.action).mean())
        for learner in (untrained, cloned)
    ]
    assert errors[1] < 0.5 * errors[0]
    assert np.array_equal(cloned.act(rows.observation), again.act(rows.observation))


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("rlpd", "sac.guidance"),
        ("rlif", "reward"),
        ("rlif", "online.demo_share"),
        ("wsrl", "demo_capacity"),
        ("hg_dagger", "reward"),
        ("hg_dagger", "sac"),
        ("hil_serl", "schedule"),
    ],
)
def test_an_option_that_an_algorithm_does_not_read_is_refused(kind: str, key: str) -> None:
    first, _, second = key.partition(".")
    values = {"kind": kind, first: {second: 1} if second else 1}
    with pytest.raises(HandoffError, match=f"unknown key 'algorithm.{key}'"):
        validate(Algorithms, {"algorithm": values})


@pytest.mark.parametrize(
    "values",
    [
        {"online": {"updates_per_step": 0.0}},
        {"online": {"updates_per_step": float("inf")}},
        {"online": {"demo_share": 1.5}},
        {"replay": {"discount": -0.1}},
        {"reward": "interventions"},
    ],
)
def test_nonsense_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(HandoffError, match="algorithm"):
        validate(Algorithms, {"algorithm": {"kind": "rlpd", **values}})


@pytest.mark.parametrize("kind", ["hil_serl", "rlpd", "rlif", "wsrl", "jsrl", "hg_dagger"])
def test_every_algorithm_is_chosen_by_its_kind_and_read_back(kind: str) -> None:
    chosen = validate(Algorithms, {"algorithm": {"kind": kind}})
    assert chosen.algorithm.kind == kind
    assert validate(Algorithms, to_plain(chosen)) == chosen


def test_updates_have_the_sizes_of_the_options() -> None:
    online = HilUpdateConfig(batch_size=7, updates_per_step=0.5, minibatches=3, training_starts=9)
    expected = OnlineConfig(
        batch_size=7, updates_per_step=0.5, minibatches=3, training_starts=9, demo_share=0.0
    )
    assert online.online() == expected
