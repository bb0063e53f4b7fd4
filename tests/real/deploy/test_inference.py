"""Inference beside the control loop: delays that are simulated, and waiting for a fast policy."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from real.deploy.inference import ChunkInference, InferenceDelay, InlineExecutor
from robots.spec import FieldSpec
from tests.real.fakes import contract

CONTRACT = contract(
    observation={"agent": FieldSpec(shape=(2,), unit="m")},
    n_obs_steps=1,
    horizon=8,
    n_action_steps=4,
    rate_hz=20.0,
)
OBSERVATION = {"agent": np.zeros(2, np.float32)}


def numbered(observation: Any, noise: np.ndarray) -> np.ndarray:
    """A chunk whose actions are 0, 1, 2, ..."""
    return np.broadcast_to(np.arange(8.0)[None, :, None], noise.shape)


def inference(policy=numbered, executor=None, **options):
    options = {"seed": 3, "wait": True, "inference_ms": [], **options}
    return ChunkInference(policy, CONTRACT, executor or InlineExecutor(), **options)


def actions(running, steps):
    """The first entry of the action of every step; None where there is none."""
    found = []
    for step in range(steps):
        running.observe(OBSERVATION)
        action = running.action(step)
        found.append(None if action is None else float(action[0]))
    return found


def test_a_delay_of_two_steps_enters_every_chunk_at_its_third_action():
    running = inference(delay=InferenceDelay(seconds=0.1))
    # The next chunk is asked for after four actions of the first, which bridges its delay.
    assert actions(running, 10) == [None, None, 2.0, 3.0, 4.0, 5.0, 2.0, 3.0, 4.0, 5.0]


def test_an_inference_begins_in_the_step_in_which_a_late_chunk_comes():
    """A chunk as late as the next is due: begun a step later, that step would have no action."""
    running = inference(delay=InferenceDelay(seconds=0.2))
    assert actions(running, 12) == [*[None] * 4, *[4.0, 5.0, 6.0, 7.0] * 2]


def test_no_delay_executes_every_chunk_from_its_first_action():
    assert actions(inference(), 6) == [0.0, 1.0, 2.0, 3.0, 0.0, 1.0]


def test_a_delay_that_is_no_whole_number_of_steps_is_rounded_up():
    assert InferenceDelay(seconds=0.06).steps(20.0, 0, 0) == 2
    assert InferenceDelay(seconds=0.15).steps(20.0, 0, 0) == 3
    assert InferenceDelay().steps(20.0, 0, 0) == 0


def test_jitter_is_added_at_random_and_repeats():
    delay = InferenceDelay(seconds=0.05, jitter=0.1)
    steps = [delay.steps(20.0, 5, number) for number in range(200)]
    assert steps == [delay.steps(20.0, 5, number) for number in range(200)]
    assert set(steps) == {2, 3}
    assert 60 < steps.count(2) < 140


@pytest.mark.parametrize(("grace", "first"), [(5.0, 0.0), (0.0, None)])
def test_a_loop_that_does_not_wait_gives_a_fast_policy_a_moment(grace, first):
    free = threading.Event()

    def slow(observation, noise):
        free.wait(5.0)
        return numbered(observation, noise)

    with ThreadPoolExecutor(1) as executor:
        running = inference(slow, executor, wait=False, grace=grace)
        running.observe(OBSERVATION)
        timer = threading.Timer(0.05, free.set)
        timer.start()
        action = running.action(0)
        assert (None if action is None else float(action[0])) == first
        free.set()
        timer.join()


@pytest.mark.parametrize(("stride", "remembered"), [(1, 7.0), (50, 0.0)])
def test_a_hold_ends_velocities_but_not_what_a_policy_remembers(stride, remembered):
    shown = []

    def look(observation: Any, noise: np.ndarray) -> np.ndarray:
        shown.append(observation[0, :, 0].tolist())
        return numbered(observation, noise)

    windows = replace(CONTRACT, n_obs_steps=2, observation_stride=stride)
    running = ChunkInference(look, windows, InlineExecutor(), seed=0, wait=True, inference_ms=[])
    for step in range(7):
        running.observe({"agent": np.full(2, step, np.float32)})
        running.action(step)
    running.restart()
    running.observe({"agent": np.full(2, 7.0, np.float32)})
    running.action(7)
    assert shown[-1] == [remembered, 7.0]


def deciding(prefixes: list[np.ndarray]) -> Any:
    """A policy that notes its prefixes; its actions are those of the last decided one, and on."""

    def policy(inputs: Any, noise: np.ndarray) -> np.ndarray:
        prefixes.append(inputs.prefix)
        return numbered(inputs, noise)

    return policy


PREFIXED = replace(CONTRACT, prefix=3)


def test_a_policy_is_given_the_actions_that_are_executed_until_its_chunk_is_expected():
    prefixes: list[np.ndarray] = []
    delay = InferenceDelay(seconds=0.1)
    options: dict[str, Any] = {"seed": 3, "wait": True, "inference_ms": [], "delay": delay}
    running = ChunkInference(deciding(prefixes), PREFIXED, InlineExecutor(), **options)
    found = actions(running, 10)
    assert found == [None, None, 2.0, 3.0, 4.0, 5.0, 2.0, 3.0, 4.0, 5.0]
    assert not prefixes[0].any(), "nothing is decided at an episode's beginning"
    # The second inference begins in step 4; until its chunk comes 4 and 5 are executed.
    np.testing.assert_array_equal(prefixes[1][0, :, 0], [4.0, 5.0, 0.0])
    np.testing.assert_array_equal(prefixes[1][0, :, -1], [1.0, 1.0, 0.0])


def test_a_chunk_that_comes_early_waits_until_its_decided_actions_are_executed():
    """With jitter, as much is decided as the longest delay takes."""
    prefixes: list[np.ndarray] = []
    delay = InferenceDelay(seconds=0.0, jitter=0.1)
    options: dict[str, Any] = {"seed": 3, "wait": True, "inference_ms": [], "delay": delay}
    running = ChunkInference(deciding(prefixes), PREFIXED, InlineExecutor(), **options)
    found = actions(running, 24)
    decided = [int(prefix[0, :, -1].sum()) for prefix in prefixes]
    assert decided[0] == 0
    assert set(decided[1:]) == {2}
    assert {late: delay.steps(20.0, 3, late) for late in range(6)} != dict.fromkeys(range(6), 2)
    # From the second chunk on, its first two actions are those of the chunk before.
    later = found[found.index(4.0) :]
    assert 0.0 not in later
    assert 1.0 not in later


def test_the_expected_delay_of_a_running_policy_is_that_of_its_slow_inferences():
    running = ChunkInference(
        numbered,
        PREFIXED,
        InlineExecutor(),
        seed=3,
        wait=False,
        inference_ms=[900.0, 900.0, *[40.0] * 30],
        grace=0.005,
    )
    # 35 ms beyond the grace at 20 Hz; the two first ones were warming up.
    assert running._expected_steps() == 1
    running._inference_ms += [120.0] * 10
    assert running._expected_steps() == 3
    running._inference_ms.clear()
    assert running._expected_steps() == 0


def test_more_decided_actions_than_the_policy_takes_are_left_out():
    prefixes: list[np.ndarray] = []
    delay = InferenceDelay(seconds=0.2)
    options: dict[str, Any] = {"seed": 3, "wait": True, "inference_ms": [], "delay": delay}
    running = ChunkInference(deciding(prefixes), PREFIXED, InlineExecutor(), **options)
    actions(running, 9)
    assert prefixes[1].shape == (1, 3, 3)
    assert prefixes[1][0, :, -1].all()
