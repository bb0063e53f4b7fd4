"""Defines the independent random streams that are derived from one seed.

Supervised training uses `policies.training.loop.rng(seed, number)`, and `RandomStream` gives the
first number of each purpose. A reinforcement learner uses a seed sequence, such as
`numpy.random.default_rng([seed, stream, update])`, and the other tables give the entry after the
seed. The values determine the random numbers: changing one changes every result that depends on
it. `sim.episode_streams` has the streams of an episode's seed.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

_REGION = 1 << 60

PROCESS_SPACING = 1 << 40
"""Distance between the stream numbers of two processes of one training; larger than any number of
updates."""
STORE_SPACING = 1 << 40
"""Distance between the stream numbers of two stores' held-out episodes."""
ORDER_SPACING = 1 << 40
"""Distance between the stream numbers of two data orders; larger than any number of epochs."""


class RandomStream(IntEnum):
    """First stream number of each purpose of a training; a purpose that draws more than once counts
    up from it, and never reaches the next purpose's."""

    UPDATE = 0
    """The loss of update n: noise, times, dropout, crops. Process p uses number n + p *
    `PROCESS_SPACING`."""
    TEACHER_NOISE = 1 * _REGION
    """The noise of a teacher's samples for a one-step student, one draw per pass."""
    HELD_OUT = 2 * _REGION
    """The choice of held-out episodes, one draw per store, `STORE_SPACING` apart."""
    VALIDATION = HELD_OUT + 1
    """The noise of the validation loss, one draw per batch of held-out windows; lies between the
    numbers of the held-out episodes of the first and the second store."""
    GOAL = 3 * _REGION
    """The goals of the windows of a batch, one draw per update."""
    DATA_ORDER = 4 * _REGION
    """The order of the windows, one draw per epoch; the orders of several stores are
    `ORDER_SPACING` apart."""
    VALIDATION_GOAL = 5 * _REGION
    """The goals of held-out windows, one draw per batch."""
    OPEN_LOOP = 6 * _REGION
    """The noise of chunks that are compared with recorded actions, one draw per episode."""
    SAMPLE_PLOT = 7 * _REGION
    """Noise and goals of the plot of sampled chunks, one draw."""
    FIELD_DROPOUT = 8 * _REGION
    """The windows of update n in which observation fields are hidden; process p as for
    `UPDATE`."""
    DECIDED = 9 * _REGION
    """The numbers of decided actions of a one-step student's pairs, one draw."""


class LearnerStream(IntEnum):
    """Second entry of a reinforcement learner's seed sequence, after its seed."""

    EXPLORATION = 1
    """Exploration at an environment step; the step's number follows in the sequence."""
    REPLAY = 2
    """Minibatches of an update; the update's number follows in the sequence."""
    OFFLINE_REPLAY = 3
    """Minibatches of an offline update; the update's number follows in the sequence."""
    FAST_TD3_UPDATE = 3
    """Noise of a FastTD3 update; the update's number follows in the sequence. Equal to
    `OFFLINE_REPLAY`, which FastTD3 does not use because it has no offline phase."""
    CLONING = 5
    """Minibatches of an imitation update before a session; the update's number follows in the
    sequence."""
    MRQ_UPDATE = 6
    """Noise of an MR.Q update; the update's number follows in the sequence."""
    MRQ_ENCODER = 7
    """Minibatches of an update of MR.Q's encoders; the number of that update follows in the
    sequence."""
    CQN_UPDATE = 8
    """Bins that a CQN-AS update draws among equal ones; the update's number follows in the
    sequence."""


class ChunkSelectionStream(IntEnum):
    """Third entry of the seed sequence of fine-tuning by best-of-N, EXPO, Q-chunking, DSRL
    and RL tokens, after its seed and the number of completed rollouts."""

    ROLLOUT = 0
    """The noise of the chunks that are executed in the environments."""
    UPDATE = 1
    """The noise and the candidates of the updates after the rollout."""
    DEMONSTRATIONS = 2
    """The noise of the chunks that are sampled at the states of demonstrations, once per run."""
    TOKEN = 3
    """The noise of the chunks that are executed in the states that train the RL token, once per
    run, and the minibatches of that training."""


class Rl100Stream(IntEnum):
    """First stream number of each purpose in RL-100, the second entry of its seed sequence."""

    ITERATION = 0
    """Imitation and offline RL of an iteration, one number per iteration; iterations stay below
    1,000."""
    ROLLOUT = 1000
    """Noise of the chunks in the environments, one number per rollout."""


def sequence_seed(*entropy: int) -> int:
    """Seed of 32 bits from numbers, by `numpy.random.SeedSequence`; slower than `mixed_seed`."""
    return int(np.random.SeedSequence(entropy).generate_state(1)[0])


def mixed_seed(seed: int, number: int) -> int:
    """Seed of 63 bits from two numbers, by the finaliser of SplitMix64; `sequence_seed` takes a
    tenth of a millisecond."""
    mixed = (seed * 0x9E3779B97F4A7C15 + number * 0xD1342543DE82EF95 + 0x9E3779B97F4A7C15) % 2**64
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = ((mixed ^ (mixed >> shift)) * factor) % 2**64
    return (mixed ^ (mixed >> 31)) >> 1


def update_seed(seed: int, update: int) -> int:
    """Seed of an update of a training, used for the latent states of a world model; distinct for
    seeds below 2^31 and updates below 2^32."""
    return (seed << 32) + update


def minibatch_seed(seed: int, rollout: int, epoch: int, minibatch: int | None = None) -> int:
    """Seed of 63 bits of a minibatch's loss in an on-policy learner; without `minibatch`, the seed
    of the epoch's order.

    Distinct for seeds below 91,000, rollouts below 1,000,003, epochs below 1,009 and minibatches
    below 100,002.
    """
    number = 0 if minibatch is None else minibatch + 1
    key = ((seed * 1_000_003 + rollout) * 1_009 + epoch) * 100_003 + number
    return key % (1 << 63)
