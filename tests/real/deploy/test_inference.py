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
