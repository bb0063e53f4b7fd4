"""The table of random streams: changing a value changes every reported result."""

from __future__ import annotations

from enum import IntEnum
from itertools import pairwise, product

import numpy as np
import pytest

from policies.random_streams import (
    ORDER_SPACING,
    PROCESS_SPACING,
    STORE_SPACING,
    ChunkSelectionStream,
    LearnerStream,
    RandomStream,
    Rl100Stream,
    minibatch_seed,
    mixed_seed,
    sequence_seed,
    update_seed,
)
from policies.training.distributed import stream_number
from policies.training.loop import rng


def values(streams: type[IntEnum]) -> dict[str, int]:
    return {name: int(stream) for name, stream in streams.__members__.items()}


def test_the_streams_of_a_training_are_those_of_every_earlier_result() -> None:
    assert values(RandomStream) == {
        "UPDATE": 0,
        "TEACHER_NOISE": 1152921504606846976,
        "HELD_OUT": 2305843009213693952,
        "VALIDATION": 2305843009213693953,
        "GOAL": 3458764513820540928,
        "DATA_ORDER": 4611686018427387904,
        "VALIDATION_GOAL": 5764607523034234880,
        "OPEN_LOOP": 6917529027641081856,
        "SAMPLE_PLOT": 8070450532247928832,
        "FIELD_DROPOUT": 9223372036854775808,
        "DECIDED": 10376293541461622784,
    }
    assert PROCESS_SPACING == STORE_SPACING == ORDER_SPACING == 1099511627776


def test_the_streams_of_the_learners_are_those_of_every_earlier_result() -> None:
    assert values(LearnerStream) == {
        "EXPLORATION": 1,
        "REPLAY": 2,
        "OFFLINE_REPLAY": 3,
        "FAST_TD3_UPDATE": 3,
        "CLONING": 5,
        "MRQ_UPDATE": 6,
        "MRQ_ENCODER": 7,
        "CQN_UPDATE": 8,
    }
    assert values(ChunkSelectionStream) == {
        "ROLLOUT": 0,
        "UPDATE": 1,
        "DEMONSTRATIONS": 2,
        "TOKEN": 3,
    }
    assert values(Rl100Stream) == {"ITERATION": 0, "ROLLOUT": 1000}


def test_only_the_pair_that_never_meets_shares_a_value() -> None:
    assert len(set(RandomStream)) == len(RandomStream.__members__)
    assert len(set(Rl100Stream)) == len(Rl100Stream.__members__)
    shared = {name for name, stream in LearnerStream.__members__.items() if stream.name != name}
    assert shared == {"FAST_TD3_UPDATE"}


def test_no_stream_of_a_training_reaches_the_next_one() -> None:
    # 1,000 processes, stores and orders of as many draws as a year of updates at 1 kHz.
    draws, copies = 365 * 86_400 * 1_000, 1_000
    assert draws < PROCESS_SPACING
    most = {
        RandomStream.UPDATE: copies * PROCESS_SPACING,
        RandomStream.HELD_OUT: 1,
        RandomStream.VALIDATION: draws,
        RandomStream.DATA_ORDER: copies * ORDER_SPACING,
    }
    for stream, following in pairwise(sorted(RandomStream)):
        assert stream + most.get(stream, draws) <= following, stream.name
    assert RandomStream.VALIDATION + draws < RandomStream.HELD_OUT + STORE_SPACING
    assert RandomStream.HELD_OUT + copies * STORE_SPACING < RandomStream.GOAL
    assert RandomStream.SAMPLE_PLOT < 2**63, "NumPy's keys of Philox are taken as signed"


def test_a_stream_draws_what_its_bare_number_draws() -> None:
    assert rng(3, RandomStream.SAMPLE_PLOT).random() == rng(3, 7 << 60).random()
    assert rng(3, RandomStream.GOAL + 5).random() == rng(3, (3 << 60) + 5).random()
    named = np.random.default_rng([3, LearnerStream.REPLAY, 5]).random()
    assert named == np.random.default_rng([3, 2, 5]).random()
    assert sequence_seed(3, LearnerStream.FAST_TD3_UPDATE, 5) == int(
        np.random.SeedSequence([3, 3, 5]).generate_state(1)[0]
    )


def test_process_zero_draws_by_the_number_of_the_update_alone() -> None:
    assert stream_number(7, 0) == 7
    assert stream_number(7, 2) == 7 + 2 * 2**40


@pytest.mark.parametrize(
    ("seed", "number", "mixed"),
    [
        (0, 0, 8147104208329303767),
        (1, 0, 3980143261097177850),
        (0, 1, 8814811874311425805),
        (3, 1000, 3318434375688507112),
    ],
)
def test_a_mixed_seed_stays_what_it_was(seed: int, number: int, mixed: int) -> None:
    assert mixed_seed(seed, number) == mixed


def test_a_minibatch_seed_equals_a_worked_number() -> None:
    assert minibatch_seed(0, 0, 0) == 0
    assert minibatch_seed(0, 0, 0, 0) == 1
    assert minibatch_seed(0, 0, 1) == 100_003
    assert minibatch_seed(0, 1, 0) == 1_009 * 100_003
    assert minibatch_seed(1, 0, 0) == 1_000_003 * 1_009 * 100_003
    assert minibatch_seed(2, 3, 4, 5) == ((2 * 1_000_003 + 3) * 1_009 + 4) * 100_003 + 6
    assert minibatch_seed(10**6, 0, 0) < 2**63


def test_no_two_minibatches_share_a_seed() -> None:
    edges = product((0, 1, 90_999), (0, 1_000_002), (0, 1_008), (None, 0, 100_001))
    seeds = [minibatch_seed(*edge) for edge in edges]
    assert len(set(seeds)) == len(seeds)


def test_no_two_updates_share_a_seed() -> None:
    assert update_seed(0, 2**32 - 1) + 1 == update_seed(1, 0) == 4294967296
