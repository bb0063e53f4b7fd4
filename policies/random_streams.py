"""Keeps the random draws of one seed apart: the tables of all streams of trainings and of
learners.

A training draws by `policies.training.loop.rng(seed, number)`, and `RandomStream` says at which
number each purpose begins. A reinforcement learner draws by a seed sequence, such as
`numpy.random.default_rng([seed, stream, update])`, and the other tables name the entry behind the
seed. The numbers decide what is drawn: a changed one changes every result that rests on it. Streams
of an episode's seed stand in `sim.episode_streams`.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

_REGION = 1 << 60

PROCESS_SPACING = 1 << 40
"""Numbers between the draws of two processes of one training: above every update."""
STORE_SPACING = 1 << 40
"""Numbers between the draws for the held-out episodes of two stores."""
ORDER_SPACING = 1 << 40
"""Numbers between two data orders, whose epochs are counted within."""


class RandomStream(IntEnum):
    """First number of each purpose's draws from the seed of a training; a purpose that draws more
    than once counts on from it, never as far as the next one's."""

    UPDATE = 0
    """The loss of update number n: noise, times, dropout, crops. Process p draws it by n plus p
    times `PROCESS_SPACING`."""
    TEACHER_NOISE = 1 * _REGION
    """The noise from which a teacher answers for a one-step student, one draw per pass."""
    HELD_OUT = 2 * _REGION
    """Which episodes are held out for validation, one draw per store, `STORE_SPACING` apart."""
    VALIDATION = HELD_OUT + 1
    """The noise of the validation loss, one draw per batch of held-out windows; between the draws
    for the held-out episodes of the first store and those of the second."""
    GOAL = 3 * _REGION
    """The goal of every window of a batch, one draw per update."""
    DATA_ORDER = 4 * _REGION
    """The order of the windows, one draw per epoch; the orders of several stores are
    `ORDER_SPACING` apart."""
    VALIDATION_GOAL = 5 * _REGION
    """The goals of held-out windows, one draw per batch."""
    SAMPLE_PLOT = 7 * _REGION
    """Noise and goals of the picture of sampled chunks, one draw."""


class LearnerStream(IntEnum):
    """Second entry of the seed sequence of a reinforcement learner's draws, behind its seed."""

    EXPLORATION = 1
    """The actions of the step in the environments whose number follows."""
    REPLAY = 2
    """The minibatches of the update whose number follows."""
    OFFLINE_REPLAY = 3
    """The minibatches of the offline update whose number follows."""
    FAST_TD3_UPDATE = 3
    """The noise within the FastTD3 update whose number follows: the same value as
    `OFFLINE_REPLAY`, which FastTD3 never draws from, for it does not learn offline."""
    ACTION_CANDIDATES = 4
    """The noise of the candidates from which a deterministic actor of EDP chooses, one draw."""


class BestOfNStream(IntEnum):
    """Third entry of the seed sequence of best-of-N fine-tuning, behind its seed and the number of
    rollouts that it has done."""

    ROLLOUT = 0
    """The noise of the chunks that are tried in the environments."""
    UPDATE = 1
    """The noise and the candidates of the updates after the rollout."""


class Rl100Stream(IntEnum):
    """First number of each purpose's draws in RL-100, the second entry of its seed sequence."""

    ITERATION = 0
    """Imitation and offline improvement of the iteration, one number each; iterations stay below
    1,000."""
    ROLLOUT = 1000
    """The noise of the chunks in the environments, one number per rollout."""


def sequence_seed(*entropy: int) -> int:
    """Seed of 32 bits from numbers, by `numpy.random.SeedSequence`; slow beside `mixed_seed`."""
    return int(np.random.SeedSequence(entropy).generate_state(1)[0])


def mixed_seed(seed: int, number: int) -> int:
    """Seed of 63 bits from two numbers, by the finaliser of SplitMix64; NumPy's takes a tenth of a
    millisecond."""
    mixed = (seed * 0x9E3779B97F4A7C15 + number * 0xD1342543DE82EF95 + 0x9E3779B97F4A7C15) % 2**64
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = ((mixed ^ (mixed >> shift)) * factor) % 2**64
    return (mixed ^ (mixed >> 31)) >> 1


def update_seed(seed: int, update: int) -> int:
    """Seed for an update below 2^32 of a training, by which a world model draws its latent states;
    the updates of two seeds below 2^31 never share one."""
    return (seed << 32) + update


def minibatch_seed(seed: int, rollout: int, epoch: int, minibatch: int | None = None) -> int:
    """Seed of 63 bits for a minibatch of an epoch over a rollout, by which an on-policy learner
    draws what its loss needs; None stands for the epoch itself, whose order is drawn.

    Distinct for seeds below 91,000, rollouts below 1,000,003, epochs below 1,009 and minibatches
    below 100,002.
    """
    number = 0 if minibatch is None else minibatch + 1
    key = ((seed * 1_000_003 + rollout) * 1_009 + epoch) * 100_003 + number
    return key % (1 << 63)
