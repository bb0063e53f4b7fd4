"""Hints beside an actor: what they read, when they are shown, and that the actor acts as without
them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from real.hil.actor import Actor, ActorConfig, ActorStep
from real.hil.actor_policy import ActorPolicy
from real.hil.hints import ActorHints
from real.hil.interfaces import observation_vector
from real.hil.journal import Journal
from real.hil.rewards import ClassifierReward, SuccessVersion
from real.hints.config import CorrectionHints, HintSource, ValueDropSource
from robots.success import DetectorConfig
from robots.wire.actor_card import CriticsCard, MlpCard, array_shapes
from robots.wire.learner import Parameters
from tests.real.hil.made import parameters
from tests.real.hil.test_actor import Counters, Person


def with_critics() -> ActorPolicy:
    """The policy of `made` and two critics, whose values are 1 - the number of the step and twice
    that."""
    plain = parameters()
    network = MlpCard(layers=(5, 1), activation="tanh", layer_norm=False)
    card = replace(plain.card, critics=CriticsCard(members=2, network=network))
    arrays = dict(plain.arrays)
    for name, shape in array_shapes(card).items():
        if name.startswith("critic"):
            arrays[name] = np.zeros(shape, np.float32)
    arrays["centre"] = np.zeros(3, np.float32)
    arrays["half_range"] = np.array([1000.0, 1.0, 1.0], np.float32)
    # The second feature is the number of the step.
    arrays["critic.0.weight"][:, 1, 0] = (-1.0, -2.0)
    arrays["critic.0.bias"][:, 0] = (1.0, 2.0)
    return ActorPolicy(Parameters(3, card, arrays))


class Source:
    paused = False

    def __init__(self, policy: ActorPolicy) -> None:
        self.policy = policy


class Watched:
    """A session of an actor with hints."""

    def __init__(self, folder: Path, config: CorrectionHints | None, **options: object) -> None:
        self.env = Counters(limit=4)
        self.shown: list[str] = []
        self.steps: list[ActorStep] = []
        self.hints = (
            None if config is None else ActorHints(config, self.env.rate_hz, 0.5, self.shown.append)
        )
        person = Person(acts=options.pop("acts", ()))  # type: ignore[arg-type]
        with Journal(folder) as journal:
            Actor(
                self.env,
                person,
                journal,
                Source(with_critics()),
                ActorConfig(),
                vector=observation_vector(self.env.observation_spec),
                monitor=self.hints,
                watch=self.watch,
                **options,  # type: ignore[arg-type]
            ).run(8)

    def watch(self, step: ActorStep) -> None:
        self.steps.append(step)
        if self.hints is not None:
            self.hints.finish(step)

    def recorded(self, name: str) -> list[float]:
        return [float(step.monitored[name][0]) for step in self.steps]


VALUES = CorrectionHints(
    value=ValueDropSource(quantile=0.5), disagreement=HintSource(), novelty=HintSource()
)


def test_values_are_of_the_proposed_action_before_its_step(tmp_path: Path) -> None:
    session = Watched(tmp_path, VALUES)
    # Two critics: 1 - t and 2 (1 - t), of episodes of four steps.
    assert session.recorded("value") == pytest.approx([1.5, 0.0, -1.5, -3.0] * 2)
    assert session.recorded("value_spread") == pytest.approx([0.5, 0.0, 0.5, 1.0] * 2)
    # Beyond the range of -1 to 1 of the number of the step.
    assert session.recorded("novelty") == pytest.approx([0.0, 0.0, 0.5, 1.0] * 2)
    assert session.hints is not None
    assert list(session.hints.fields) == ["hint", "value", "value_spread", "novelty"]


def test_hints_change_no_action(tmp_path: Path) -> None:
    with_hints = Watched(tmp_path / "with", VALUES)
    without = Watched(tmp_path / "without", None)
    assert np.array_equal(with_hints.env.actions, without.env.actions)
    assert without.steps[0].monitored == {}


def test_a_hint_is_shown_before_its_step_and_not_while_the_person_acts(tmp_path: Path) -> None:
    config = replace(VALUES, recent=1, least=1, novelty=None, disagreement=None)
    session = Watched(tmp_path / "first", config)
    assert not any(session.shown), "no episode was solved, so there is no limit"
    hints = ActorHints(config, 10.0, None, session.shown.append)
    hints.monitor.replay(
        {
            "intervention": np.zeros(2),
            "value": np.array([1.0, 0.9], np.float32),
            "value_spread": np.ones(2),
        },
        solved=True,
    )
    session.shown.clear()
    policy, action = with_critics(), np.zeros((1, 2), np.float32)
    for step, person in ((0, False), (1, False), (2, True)):
        vector = np.array([[0.0, float(step), 0.0]], np.float32)
        hints(policy, vector, {}, action, np.array([person]))
    assert session.shown == [
        "",
        "The policy expects less success than a moment ago: consider taking over.",
        "",
    ]


def test_hints_that_are_not_to_be_shown_are_recorded(tmp_path: Path) -> None:
    config = CorrectionHints(novelty=HintSource(), recent=1, least=1, shown=False)
    shown: list[str] = []
    hints = ActorHints(config, 10.0, None, shown.append)
    hints.monitor.replay({"intervention": np.zeros(1), "novelty": np.zeros(1)}, solved=True)
    vector = np.array([[0.0, 7.0, 0.0]], np.float32)
    recorded = hints(with_critics(), vector, {}, np.zeros((1, 2), np.float32), np.zeros(1, bool))
    assert recorded["hint"].tolist() == [4]
    assert shown == [""]


def test_the_probability_is_that_after_the_last_step_and_unknown_at_first(tmp_path: Path) -> None:
    probability = lambda observation: 0.1 * observation["state"][:, 1]  # noqa: E731
    rewards = ClassifierReward(SuccessVersion(0, "", probability, DetectorConfig(threshold=0.9)))
    config = CorrectionHints(success=HintSource())
    session = Watched(tmp_path, config, rewards=rewards)
    assert session.recorded("success_probability") == pytest.approx([-1.0, 0.1, 0.2, 0.3] * 2)


def test_without_a_policy_nothing_is_measured() -> None:
    hints = ActorHints(VALUES, 10.0, None, lambda text: None)
    recorded: Mapping[str, np.ndarray] = hints(
        None, np.zeros((1, 3)), {}, np.zeros((1, 2)), np.zeros(1, bool)
    )
    assert {name: array.tolist() for name, array in recorded.items()} == {
        "hint": [0],
        "value": [0.0],
        "value_spread": [-1.0],
        "novelty": [-1.0],
    }
