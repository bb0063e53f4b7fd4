import numpy as np
import pytest

from real.deploy.schedule import ChunkSchedule, ObservationHistory
from robots.errors import HandoffError
from tests.real.fakes import contract


def chunk(offset: float) -> np.ndarray:
    return offset + np.arange(16.0)[:, None]


def test_first_action_is_the_one_of_the_newest_observation():
    schedule = ChunkSchedule(contract())
    schedule.receive(chunk(100.0), 0)
    assert schedule.action(0) == [101.0]
    assert schedule.action(7) == [108.0]


def test_new_chunk_is_due_every_eight_steps():
    schedule = ChunkSchedule(contract())
    due = []
    for step in range(20):
        if schedule.due(step):
            due.append(step)
            schedule.requested(step)
    assert due == [0, 8, 16]


def test_tail_of_the_old_chunk_bridges_a_late_one():
    schedule = ChunkSchedule(contract())
    schedule.receive(chunk(100.0), 0)
    assert schedule.action(14) == [115.0]
    assert schedule.action(15) is None


def test_late_chunk_is_entered_at_the_step_of_the_clock():
    schedule = ChunkSchedule(contract())
    schedule.receive(chunk(100.0), 0)
    schedule.receive(chunk(200.0), 8)
    assert schedule.action(10) == [203.0]


def test_ensembling_averages_all_chunks_that_have_an_action_for_the_step():
    schedule = ChunkSchedule(contract(ensemble=0.5))
    for step in range(3):
        assert schedule.due(step)
        schedule.requested(step)
        schedule.receive(chunk(100.0 * step), step)
    weights = np.exp([0.0, -0.5, -1.0])
    expected = weights @ [1.0 + 2.0, 101.0 + 1.0, 201.0] / weights.sum()
    action = schedule.action(2)
    assert action is not None
    np.testing.assert_allclose(action, [expected])


def test_ensembling_forgets_chunks_that_have_ended():
    schedule = ChunkSchedule(contract(ensemble=0.0))
    schedule.receive(chunk(0.0), 0)
    schedule.receive(chunk(100.0), 15)
    action = schedule.action(15)
    assert action is not None
    np.testing.assert_allclose(action, [101.0])


def test_more_actions_than_the_horizon_holds_are_refused():
    with pytest.raises(HandoffError, match="16 actions from index 1 do not fit the horizon 16"):
        ChunkSchedule(contract(n_action_steps=16))


def test_history_repeats_the_first_observation_and_keeps_the_newest_last():
    history = ObservationHistory(2)
    history.append(np.array([1.0]))
    assert history.stacked().tolist() == [[[1.0], [1.0]]]
    history.append(np.array([2.0]))
    history.append(np.array([3.0]))
    assert history.stacked().tolist() == [[[2.0], [3.0]]]


def test_history_with_a_stride() -> None:
    history = ObservationHistory(3, stride=2)
    rows = []
    for step in range(6):
        history.append(np.array([step]))
        rows.append(history.stacked()[0, :, 0].tolist())
    assert rows == [[0, 0, 0], [0, 0, 1], [0, 0, 2], [0, 1, 3], [0, 2, 4], [1, 3, 5]]
