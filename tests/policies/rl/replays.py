"""Replays and episodes worked by hand, and what a slow replay says of them."""

import numpy as np

from policies.rl.replay.buffer import Replay
from policies.rl.replay.config import ReplayConfig
from robots.wire.steps import Steps, plain_steps
from tests.policies.rl.slow_replay import SlowReplay


def episode(
    rewards: list[float], number: int = 0, end: str = "terminated", first: int = 0
) -> Steps:
    """Steps `first`, `first` + 1, ... of one episode; step i observes i, then i + 1, and acts 0.1
    i."""
    n = len(rewards)
    index = first + np.arange(n)
    last = index == first + n - 1
    return plain_steps(
        np.full(n, number),
        index,
        index[:, None],
        0.1 * index[:, None],
        np.array(rewards),
        index[:, None] + 1,
        last & (end == "terminated"),
        last & (end == "truncated"),
    )


def replay_of(*several: Steps, **options) -> Replay:
    replay = Replay(ReplayConfig(**{"capacity": 100, "discount": 0.5, **options}), 1, 1)
    for steps in several:
        replay.append(steps)
    return replay


def assert_same(replay: Replay, slow: SlowReplay) -> None:
    """Every stored step's transition, and which of them may be drawn."""
    slots = np.array([serial % replay.config.capacity for serial in slow.stored()])
    got = replay.transitions(slots)
    wanted = [slow.transition(serial) for serial in slow.stored()]
    columns = {
        "observation": got.obs.vector_BO,
        "action": got.action_BA,
        "reward": got.reward_B,
        "toggles": got.toggles_B,
        "discount": got.discount_B,
        "next_observation": got.next_obs.vector_BO,
        "demo": got.demo_B,
        "intervention": got.intervention_B,
        "mc_return": got.extra["mc_return"],
    }
    if replay.config.horizon > 1:
        columns["valid"] = got.extra["valid_BH"]
    for name, column in columns.items():
        expected = np.stack([row[name] for row in wanted])
        np.testing.assert_allclose(column.numpy(), expected, rtol=1e-5, atol=1e-5, err_msg=name)
    whole = [slot for slot, row in zip(slots, wanted, strict=True) if row["whole"]]
    assert replay.drawable().tolist() == sorted(whole)


def random_config(rng: np.random.Generator) -> ReplayConfig:
    return ReplayConfig(
        capacity=int(rng.choice([1, 2, 7, 20, 64])),
        n_step=int(rng.integers(1, 5)),
        horizon=int(rng.choice([1, 1, 2, 3, 6])),
        discount=float(rng.choice([0.0, 0.5, 0.9])),
        timeouts_end=bool(rng.integers(2)),
        mc_return=True,
        mc_tail=float(rng.choice([0.0, -1.0])),
    )
