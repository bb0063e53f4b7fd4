"""Each algorithm of the stage `correct` in a real session of a few hundred steps: actor and learner
in their own processes, with a simulated operator."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.artifacts import Episodes, Policy
from flows.correction.config import CorrectConfig
from flows.session.config import HilEnvConfig
from flows.stages.data import demonstrate
from flows.stages.data.config import DemonstrateConfig
from flows.stages.learn import correct
from policies.checkpoint import read_card
from policies.networks.config import TrunkConfig
from policies.rl.hil.make_learner import make_learner
from robots.config import validate
from robots.episodes.corrections import STREAM
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import no_progress
from robots.spec import ActionSpec
from robots.wire.steps import GUIDE_VERSION, plain_steps
from sim.scene.cameras import CamerasConfig
from tests.flows.correction.straight import straight_to_the_goal
from tests.nightly import in_every_run
from tests.policies.rl.offline_state import save_offline

ENV = HilEnvConfig(task="reach", observation_fields=("dq", "grasp_pose", "target_offset", "goal"))
STEPS = 300
SMALL: dict[str, Any] = {
    "critic": {"hidden": [16], "activation": "relu"},
    "actor": {"hidden": [16], "activation": "relu"},
}
ONLINE = {"batch_size": 32, "updates_per_step": 0.5, "minibatches": 1, "training_starts": 50}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "hil_serl": {"reward": "task", "sac": {**SMALL, "guidance": {}}, "online": ONLINE},
    "rlpd": {"reward": "task", "sac": SMALL, "online": ONLINE},
    "rlif": {"sac": SMALL, "online": ONLINE},
    "wsrl": {"reward": "task", "sac": {**SMALL, "critics": 2, "subset": None}, "online": ONLINE},
    "jsrl": {
        "reward": "task",
        "sac": SMALL,
        "online": ONLINE,
        "schedule": {"kind": "curriculum", "max_horizon": 60, "stages": 2, "episodes": 2},
    },
    "hg_dagger": {
        "network": {"hidden": [16]},
        "cloning_updates": 20,
        "online": {**ONLINE, "training_starts": 0},
    },
}
UPDATES = {"hg_dagger": 150}
"""Half of the steps after `training_starts`; 125 where that is 50."""


def config(kind: str, operator: str = "failure") -> CorrectConfig:
    return validate(
        CorrectConfig,
        {
            "env": {"task": ENV.task, "observation_fields": list(ENV.observation_fields)},
            "operator": {"simulated": {"policy": operator}},
            "algorithm": {"kind": kind, **ALGORITHMS[kind]},
            "relative_features": [{"field": "grasp_pose", "other": "goal"}],
            "steps": STEPS,
            "speed": 0.0,
            "backlog": 20,
            "learner": {"port": 0, "publish_every": 10},
            "actor": {"commit_every": 5},
        },
    )


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Episodes:
    out = tmp_path_factory.mktemp("demos")
    demonstrate.run(DemonstrateConfig(env=ENV, episodes=4), out, no_progress)
    return Episodes(out)


def policies_of(kind: str, demos: Path, folder: Path) -> dict[str, Policy]:
    """Policies that the algorithm takes as inputs."""
    match kind:
        case "wsrl":
            return {"policy": Policy(offline_policy(folder / "offline", demos))}
        case "jsrl":
            straight_to_the_goal(folder / "guide")
            return {"guide": Policy(folder / "guide")}
        case _:
            return {}


def offline_policy(folder: Path, demos: Path) -> Path:
    """Random networks with the sizes of the session's."""
    folder.mkdir()
    store = EpisodeStore.open(demos / "store.zarr")
    fields = store.schema.stream(STREAM).fields
    action = ActionSpec(low=(-1.0,) * 3, high=(1.0,) * 3, names=("x", "y", "z"))
    obs = np.random.default_rng(0).normal(size=(5, 22))
    none = np.zeros(5, bool)
    rows = plain_steps(none, none, obs, np.zeros((5, 3)), none, obs, none, none)
    algorithm = config("wsrl").algorithm
    assert algorithm.kind == "wsrl"
    learner = make_learner(
        algorithm.sac,
        {name: fields[name] for name in ENV.observation_fields},
        action,
        [rows],
        relative_features=config("wsrl").relative_features,
        seed=5,
    )
    save_offline(folder, learner, ENV.observation_fields)
    return folder


@pytest.mark.parametrize("kind", in_every_run(ALGORITHMS, "hil_serl"))
def test_a_session_trains_and_saves_its_policy(kind: str, demos: Episodes, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    inputs: dict[str, Any] = dict(policies_of(kind, demos, tmp_path))
    operator = "never" if kind == "jsrl" else "failure"
    metrics = correct.run(config(kind, operator), out, no_progress, demos=demos, **inputs).metrics
    assert metrics["steps"] >= STEPS
    assert metrics["updates"] == UPDATES.get(kind, 125)
    card = read_card(out)
    assert tuple(card.observation) == ENV.observation_fields
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert lines, "a line per hundred updates"
    assert (out / "learning.png").exists()
    store = EpisodeStore.open(out / "store.zarr")
    versions = np.concatenate(
        [
            store.read(e, STREAM, ["policy_version"])["policy_version"]
            for e in range(store.num_episodes)
        ]
    )
    if kind == "jsrl":
        assert metrics["guide_success"] == 1.0
        assert metrics["guide_evaluations"] >= 2
        assert store.metadata(0)["guide_steps"] == 60
        assert (versions[:10] == GUIDE_VERSION).all(), "the guide acts at first"
    else:
        assert (versions >= 0).all()
        assert "guide_steps" not in store.metadata(0)


def test_a_guide_that_solves_nothing_stops_the_session(demos: Episodes, tmp_path: Path) -> None:
    straight_to_the_goal(tmp_path / "guide", speed=-1.0)
    out = tmp_path / "out"
    out.mkdir()
    guide = Policy(tmp_path / "guide")
    with pytest.raises(HandoffError, match=r"jsrl: with the guide .* 0\.00 of the episodes"):
        correct.run(config("jsrl", operator="never"), out, no_progress, demos=demos, guide=guide)


@pytest.mark.parametrize(
    ("kind", "sources", "message"),
    [
        ("jsrl", {"demos"}, r"jsrl needs the input 'guide', the stage has \['demos'\]"),
        ("wsrl", {"demos"}, "wsrl needs the input 'policy'"),
        ("rlpd", {"demos", "guide"}, "rlpd does not read the input 'guide'"),
        ("rlpd", {"demos", "classifier"}, "or set algorithm.reward=classifier"),
    ],
)
def test_inputs_that_do_not_fit_the_algorithm_are_refused(
    kind: str, sources: set[str], message: str
) -> None:
    with pytest.raises(HandoffError, match=message):
        correct.check(config(kind), dict.fromkeys(sources))


@pytest.mark.parametrize("kind", ["rlif", "hg_dagger"])
def test_a_classifier_may_end_episodes_that_are_not_rewarded(kind: str) -> None:
    for sources in ({"demos"}, {"demos", "classifier"}):
        correct.check(config(kind), dict.fromkeys(sources))


def test_the_reward_of_a_classifier_needs_one() -> None:
    chosen = config("rlpd")
    assert chosen.algorithm.kind == "rlpd"
    rewarded = replace(chosen, algorithm=replace(chosen.algorithm, reward="classifier"))
    with pytest.raises(HandoffError, match="'classifier' needs the input 'classifier'"):
        correct.check(rewarded, {"demos": None})


@pytest.mark.parametrize(
    ("kind", "names", "message"),
    [
        ("hg_dagger", ["wrist"], "hg_dagger reads vectors only; hil_serl, rlpd and jsrl"),
        ("rlpd", ["front"], r"names \['image_wrist'\], the session renders \['image_front'\]"),
        ("rlpd", [], r"the session renders \[\]. Set env.cameras"),
    ],
)
def test_pictures_that_the_session_lacks_or_the_algorithm_does_not_read_are_refused(
    kind: str, names: list[str], message: str
) -> None:
    chosen = config(kind)
    cameras = CamerasConfig(names=tuple(names)) if names else None
    pictured = replace(
        chosen,
        env=replace(chosen.env, cameras=cameras),
        actor=replace(chosen.actor, pictures=("image_wrist",)),
    )
    with pytest.raises(HandoffError, match=message):
        correct.check(pictured, {"demos": None})


@pytest.mark.parametrize(("name", "value"), [("blind", True), ("trunk", TrunkConfig(stride=8))])
def test_options_of_pictures_without_pictures_are_refused(name: str, value: object) -> None:
    with pytest.raises(HandoffError, match=rf"{name} is set, but actor\.pictures is empty"):
        correct.check(replace(config("rlpd"), **{name: value}), {"demos": None})
