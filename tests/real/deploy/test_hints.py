"""Hints beside an exported policy: the spread of its chunks, and novel observations."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from real.deploy.hints import ChunkSpread, DeployHints
from real.hints.config import ActionSpreadSource, DeploymentHints, HintSource
from robots.control.training_range import data_range, input_range
from robots.errors import HandoffError
from robots.interfaces import PolicyInput
from robots.spec import FieldSpec
from tests.real.fakes import contract

ROWS = np.array([[0.0, 0.0], [0.5, 0.5]], np.float32)
CONTRACT = contract(
    observation={"agent": FieldSpec(shape=(2,), unit="m")},
    n_obs_steps=2,
    horizon=8,
    n_action_steps=4,
    training_range={"agent": input_range("m", ROWS)},
    # The second entry of an action does not vary in the data.
    action_range=data_range(np.array([[0.0, 1.0], [2.0, 1.0]])),
)
CONFIG = DeploymentHints(
    spread=ActionSpreadSource(quantile=0.5, samples=4),
    novelty=HintSource(quantile=0.5),
    recent=2,
    least=1,
)
NOISE = np.zeros((1, 8, 2), np.float32)


class Noisy:
    """A policy whose chunk is its noise times `scale`, in the actions that are executed."""

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.inputs: list[Any] = []
        self.free = threading.Event()
        self.free.set()

    def __call__(self, observation: Any, noise: np.ndarray) -> np.ndarray:
        self.inputs.append(observation)
        if len(noise) > 1:
            self.free.wait(5.0)
        chunk = 1e6 * noise
        chunk[:, 1:5] = self.scale * noise[:, 1:5]
        return chunk


def hints(policy: Noisy, *, wait: bool = True, shown: list[str] | None = None) -> DeployHints:
    show = (lambda text: None) if shown is None else shown.append
    return DeployHints(CONFIG, policy, CONTRACT, show, wait=wait)


def window(value: float = 0.2) -> np.ndarray:
    return np.full((1, 2, 2), value, np.float32)


def at(value: float = 0.2) -> dict[str, np.ndarray]:
    return {"agent": np.full(2, value, np.float32)}


def test_the_spread_is_that_of_the_executed_actions_in_widths_of_the_data() -> None:
    spread = ChunkSpread(Noisy(0.5), CONTRACT)
    # A standard deviation of 0.5 in a width of 2.
    found = spread(window(), 2000, np.random.default_rng(0))
    assert found == pytest.approx(0.25, rel=0.05)


def test_every_row_of_a_sample_has_the_whole_input() -> None:
    policy = Noisy(1.0)
    inputs = PolicyInput(
        window(),
        {"front": np.ones((1, 2, 4, 4, 3), np.uint8)},
        ("fold it",),
        prefix=np.ones((1, 3, 3), np.float32),
    )
    ChunkSpread(policy, CONTRACT)(inputs, 5, np.random.default_rng(0))
    given = policy.inputs[0]
    assert given.vector.shape == (5, 2, 2)
    assert given.sensors["front"].shape == (5, 2, 4, 4, 3)
    assert given.instructions == ("fold it",) * 5
    assert given.prefix.shape == (5, 3, 3)


def test_a_deterministic_policy_is_refused() -> None:
    with pytest.raises(
        HandoffError, match=r"deterministic: its chunk \(one-step\) does not depend"
    ):
        hints(Noisy(0.0))


def test_a_policy_without_a_range_of_its_actions_is_refused() -> None:
    with pytest.raises(HandoffError, match=r"no range of its actions\. Export it again"):
        DeployHints(
            CONFIG, Noisy(1.0), replace(CONTRACT, action_range=None), lambda text: None, wait=True
        )


def test_the_executed_chunk_is_that_without_hints_and_its_samples_repeat() -> None:
    noise = np.random.default_rng(1).standard_normal((1, 8, 2)).astype(np.float32)
    found = []
    for _ in range(2):
        watched = hints(Noisy(0.5))
        watched.begin(7)
        assert np.array_equal(watched.policy(window(), noise), Noisy(0.5)(window(), noise))
        found.append(watched.step(at(), person=False)["action_spread"])
    assert found[0] == found[1] > 0.0
    other = hints(Noisy(0.5))
    other.begin(8)
    other.policy(window(), noise)
    assert other.step(at(), person=False)["action_spread"] != found[0]


def test_no_step_waits_for_a_sample_on_hardware() -> None:
    policy = Noisy(0.5)
    watched = hints(policy, wait=False)
    watched.begin(7)
    policy.free.clear()
    watched.policy(window(), NOISE)
    assert watched.step(at(), person=False)["action_spread"] == -1.0
    calls = len(policy.inputs)
    watched.policy(window(), NOISE)
    assert len(policy.inputs) <= calls + 2, "a sample that is under way is not begun again"
    policy.free.set()
    deadline = time.monotonic() + 10.0
    while watched.step(at(), person=False)["action_spread"] < 0.0:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    watched.close()


def test_a_hint_names_its_cause_and_ends_with_the_episode() -> None:
    policy, shown = Noisy(0.1), []
    watched = hints(policy, shown=shown)
    watched.begin(1)
    watched.policy(window(), NOISE)
    assert watched.step(at(), person=False)["hint"] == 0
    watched.end(solved=True)
    assert watched.monitor.limits.keys() == {"action_spread", "novelty"}
    watched.begin(2)
    policy.scale = 10.0
    watched.policy(window(), NOISE)
    recorded = watched.step(at(0.75), person=False)
    assert recorded["hint"] == 16 + 4
    assert recorded["novelty"] == pytest.approx(0.5)
    assert "unsure what to do next" in shown[-1]
    watched.step(at(0.75), person=True)
    assert shown[-1] == ""
    watched.step(at(0.75), person=False)
    assert shown[-1] != ""
    watched.end(solved=False)
    assert shown[-1] == ""
    assert list(recorded) == ["hint", "action_spread", "novelty"] == list(watched.fields)


def test_an_episode_that_a_fault_ended_sets_no_limit() -> None:
    watched = hints(Noisy(0.1))
    watched.begin(1)
    watched.policy(window(), NOISE)
    watched.step(at(), person=False)
    watched.begin(2)
    watched.policy(window(), NOISE)
    watched.step(at(0.9), person=False)
    watched.end(solved=True)
    assert watched.monitor.limits["novelty"] == pytest.approx(0.8)
