"""The replay buffer on a device, here a CPU: the values of the replay buffer on the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from policies.rl.replay.buffer import Replay
from policies.rl.replay.config import ReplayConfig
from policies.rl.replay.device_buffer import DeviceReplay, DeviceSteps
from robots.errors import HandoffError
from robots.wire.steps import Steps, plain_steps

N, ENTRIES, A = 4, 3, 2
CPU = torch.device("cpu")


def collections(count: int, restart: int | None = None) -> Iterator[Steps]:
    """Steps of N environments whose episodes end at random; at collection `restart` the running
    ones are abandoned."""
    draws = np.random.default_rng(0)
    episode, number = np.arange(N), np.zeros(N, np.int64)
    for index in range(count):
        if index == restart:
            episode, number = episode.max() + 1 + np.arange(N), np.zeros(N, np.int64)
        over = draws.random(N)
        yield plain_steps(
            episode.copy(),
            number.copy(),
            draws.normal(size=(N, ENTRIES)),
            draws.uniform(-1, 1, (N, A)),
            draws.normal(size=N),
            draws.normal(size=(N, ENTRIES)),
            terminated=over < 0.15,
            truncated=over > 0.85,
        )
        ended = (over < 0.15) | (over > 0.85)
        episode = np.where(ended, episode.max() + 1 + np.arange(N), episode)
        number = np.where(ended, 0, number + 1)


def on_device(steps: Steps) -> DeviceSteps:
    return DeviceSteps(
        *[torch.from_numpy(getattr(steps, name).copy()) for name in DeviceSteps._fields]
    )


def both(
    config: ReplayConfig, count: int, restart: int | None = None
) -> tuple[Replay, DeviceReplay]:
    host, device = Replay(config, ENTRIES, A), DeviceReplay(config, N, ENTRIES, A, CPU)
    for steps in collections(count, restart):
        host.append(steps)
        device.append(on_device(steps))
    return host, device


def tensors(batch: Any) -> dict[str, Tensor]:
    """Everything in a minibatch."""
    flat = batch._asdict()
    named = {f"{key}.vector": flat.pop(key).vector_BO for key in ("obs", "next_obs")}
    assert flat.pop("extra") == {}
    return named | flat


@pytest.mark.parametrize("timeouts_end", [False, True])
@pytest.mark.parametrize("n_step", [1, 2, 5])
@pytest.mark.parametrize(("count", "restart"), [(1, None), (7, None), (43, None), (43, 39)])
def test_steps_and_transitions_are_those_of_the_host_bit_for_bit(
    n_step: int, timeouts_end: bool, count: int, restart: int | None
) -> None:
    """Before the buffer is full and after it was, with episodes that are abandoned between."""
    config = ReplayConfig(capacity=10 * N, discount=0.9, n_step=n_step, timeouts_end=timeouts_end)
    host, device = both(config, count, restart)
    assert (len(device), device.added) == (len(host), host.added)
    for name, column in device.columns.items():
        assert np.array_equal(column.numpy(), host.columns[name]), name
    expected = tensors(host.transitions(np.arange(len(host))))
    for name, column in tensors(device.transitions(torch.arange(len(device)))).items():
        assert column.dtype == expected[name].dtype, name
        assert torch.equal(column, expected[name]), name


def test_returns_span_several_steps_and_end_where_episodes_do() -> None:
    """So that the comparison with the host has cases of every kind."""
    _, device = both(ReplayConfig(capacity=10 * N, discount=0.9, n_step=3), 43)
    discount_B = device.transitions(torch.arange(10 * N)).discount_B
    powers = torch.tensor([0.0, 0.9**3, 0.9**2, 0.9], dtype=torch.float64).float()
    assert torch.equal(discount_B.unique(), powers)


def test_samples_are_uniform_over_the_stored_steps_and_repeat_with_their_seed() -> None:
    _, device = both(ReplayConfig(capacity=100 * N), 5)
    samples = [
        device.sample(8000, torch.Generator().manual_seed(seed)).obs.vector_BO for seed in (1, 1, 2)
    ]
    rows, counts = samples[0].unique(dim=0, return_counts=True)
    assert len(rows) == 5 * N, "all stored steps, and no row that was never written"
    # 8,000 draws of 20 rows: 400 each, with a standard deviation of 19.5.
    assert counts.min() > 300
    assert counts.max() < 500
    assert torch.equal(samples[0], samples[1])
    assert not torch.equal(samples[0], samples[2])


def test_rows_restore_the_same_slots() -> None:
    config = ReplayConfig(capacity=10 * N, n_step=3)
    _, device = both(config, 43)
    state = {"columns": device.rows(device.added - len(device)), "added": device.added}
    again = DeviceReplay(config, N, ENTRIES, A, CPU)
    again.load_state_dict(state)
    assert again.added == device.added
    for name, column in device.columns.items():
        assert torch.equal(again.columns[name], column), name
    newest = device.rows(device.added - N)
    for name, column in newest.items():
        assert np.array_equal(column, state["columns"][name][-N:]), name


@pytest.mark.parametrize(
    "config",
    [
        ReplayConfig(capacity=10 * N, horizon=2),
        ReplayConfig(capacity=10 * N, mc_return=True),
        ReplayConfig(capacity=10 * N + 1),
    ],
)
def test_what_only_the_host_stores_is_refused(config: ReplayConfig) -> None:
    with pytest.raises(HandoffError, match="on a device expected a multiple of 4, the number of"):
        DeviceReplay(config, N, ENTRIES, A, CPU)


def test_an_empty_buffer_and_steps_of_another_task_are_refused() -> None:
    config = ReplayConfig(capacity=10 * N)
    empty = DeviceReplay(config, N, ENTRIES, A, CPU)
    with pytest.raises(HandoffError, match="0 steps are stored"):
        empty.sample(2, torch.Generator())
    _, device = both(config, 3)
    state = {"columns": device.rows(0), "added": device.added}
    for other in (
        DeviceReplay(config, N, ENTRIES + 1, A, CPU),
        DeviceReplay(config, 5, ENTRIES, A, CPU),
    ):
        with pytest.raises(HandoffError, match="Is it the state of another task"):
            other.load_state_dict(state)


def test_a_device_without_room_is_named_with_the_room_that_it_takes() -> None:
    with pytest.raises(
        HandoffError, match=r"does not have \(.*\)\. Lower the algorithm's capacity"
    ):
        DeviceReplay(ReplayConfig(capacity=2**44), 1, ENTRIES, A, CPU)
