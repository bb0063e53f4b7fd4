"""The board from above is drawn as gym-pusht draws its image observations."""

import numpy as np
import pytest

from sim.engines.gym_push_t import PIXELS_PER_METRE, PushTConfig, PushTEngine
from sim.rendering.board_picture import BoardPicture
from sim.tasks.push_t.geometry import GOAL_POSE


@pytest.fixture
def board() -> BoardPicture:
    return BoardPicture(96, 96)


def test_pictures_are_those_of_the_benchmark(board: BoardPicture) -> None:
    engine = PushTEngine(3, config=PushTConfig(picture=96))
    engine.reset(np.arange(3), np.array([7, 8, 100_000]))
    rng = np.random.default_rng(0)
    differing = []
    for _ in range(30):
        pictures = engine.read().observation["image"]
        for env_id, expected in enumerate(pictures):
            state = np.array(engine.dump(env_id)["state"])
            state[:4] /= PIXELS_PER_METRE
            differing.append(np.any(board.draw(state[:2], state[2:]) != expected, axis=-1).sum())
        engine.step(rng.uniform(0.1, 0.4, (3, 2)), np.ones(3, dtype=bool))
    # A corner that lies on half a pixel may be rounded to the other side.
    assert np.mean(differing) < 0.5
    assert np.max(differing) <= 20


def test_a_moved_pusher_and_a_turned_block_are_seen(board: BoardPicture) -> None:
    agent, pose = np.array([0.1, 0.4]), np.array([0.3, 0.2, 0.5])
    first = board.draw(agent, pose)
    assert first.shape == (96, 96, 3)
    assert first.dtype == np.uint8
    for other in (
        board.draw(agent + 0.01, pose),
        board.draw(agent, pose + np.array([0.0, 0.0, 0.2])),
    ):
        assert np.any(other != first, axis=-1).sum() > 10
    np.testing.assert_array_equal(board.draw(agent, pose), first)


def test_pusher_and_block_that_overlap_are_drawn_where_they_are(board: BoardPicture) -> None:
    # A step of the physics would push them apart.
    agent = GOAL_POSE[:2] + np.array([0.0, 0.02])
    picture = board.draw(agent, GOAL_POSE)
    column, row = (agent / 0.512 * 96).astype(int)
    red, green, blue = picture[row, column].astype(int)
    assert blue > red + 50
    assert blue > green + 50


def test_the_picture_has_its_own_height_and_width() -> None:
    assert BoardPicture(48, 64).draw(np.array([0.1, 0.1]), GOAL_POSE).shape == (48, 64, 3)
