import numpy as np
import pytest
import torch

from policies.rl.replay.buffer import Replay, sizes_of
from policies.rl.replay.config import ReplayConfig
from robots.errors import HandoffError
from robots.wire.steps import Steps, plain_steps, select_steps

CAMERAS = (("wrist", 2, 3), ("front", 1, 1))


def episode(number: int, length: int, end: bool = True, first: int = 0) -> Steps:
    """Every pixel of step i of episode e is 16 e + i, at the front 100 more; so is the
    observation."""
    index = first + np.arange(length)
    value = 16 * number + index
    last = index == first + length - 1

    def pictures(of: np.ndarray) -> dict[str, np.ndarray]:
        return {
            "wrist": np.broadcast_to(of[:, None, None, None], (length, 2, 3, 3)).astype(np.uint8),
            "front": np.broadcast_to(100 + of[:, None, None, None], (length, 1, 1, 3)).astype(
                np.uint8
            ),
        }

    steps = plain_steps(
        np.full(length, number),
        index,
        value[:, None],
        np.zeros((length, 1)),
        np.zeros(length),
        value[:, None] + 1,
        last & end,
        np.zeros(length, bool),
    )
    return steps._replace(pictures=pictures(value), next_pictures=pictures(value + 1))


def replay_of(*several: Steps, capacity: int = 100, folder=None, **options) -> Replay:
    replay = Replay(ReplayConfig(capacity=capacity, **options), 1, 1, CAMERAS, folder)
    for steps in several:
        replay.append(steps)
    return replay


def assert_pictures_belong(replay: Replay, slots: np.ndarray) -> None:
    batch = replay.transitions(slots)
    for obs in (batch.obs, batch.next_obs):
        value = obs.vector_BO[:, 0].numpy().astype(int) % 256
        for name, more in (("wrist", 0), ("front", 100)):
            pixels = obs.pictures[name].numpy()
            assert pixels.dtype == np.uint8
            assert (pixels == ((value + more) % 256)[:, None, None, None]).all()


def test_an_episode_of_t_steps_stores_t_plus_1_pictures():
    replay = replay_of(episode(0, 5))
    assert replay.pictures is not None
    assert replay.pictures.added == 6
    assert_pictures_belong(replay, np.arange(5))


def test_steps_appended_one_by_one_and_interleaved_store_no_picture_twice():
    replay = replay_of()
    assert replay.pictures is not None
    a, b = episode(1, 4), episode(2, 4)
    for row in range(4):
        for steps in (a, b):
            replay.append(select_steps(steps, np.array([row])))
    assert replay.pictures.added == 10
    assert_pictures_belong(replay, np.arange(8))


def test_a_correction_behind_a_gap_stores_its_own_first_picture():
    replay = replay_of(episode(0, 3, end=False), episode(0, 2, first=6))
    assert replay.pictures is not None
    assert replay.pictures.added == 4 + 3
    assert_pictures_belong(replay, np.arange(5))


def test_pictures_of_n_steps_later_are_those_of_the_last_step():
    replay = replay_of(episode(0, 5), n_step=3)
    assert replay.transitions(np.array([1])).next_obs.pictures["wrist"].unique().tolist() == [4]
    assert_pictures_belong(replay, np.arange(5))


@pytest.mark.parametrize("length", [1, 3, 12])
def test_a_full_ring_never_draws_a_step_whose_pictures_are_gone(length):
    replay = replay_of(capacity=2000)
    for number in range(6000 // length):
        replay.append(episode(number % 200, length)._replace(episode=np.full(length, number)))
    drawable = replay.drawable()
    assert len(drawable) == (2000 if length == 12 else len(drawable))
    # Rings of 2762 pictures hold that many over 1 + 1/length steps of the newest ones.
    assert len(drawable) >= min(2000, int(2762 / (1 + 1 / length)) - length)
    assert_pictures_belong(replay, drawable)


def test_an_episode_that_waited_until_its_picture_was_overwritten_stores_it_again():
    replay = replay_of(episode(3, 1, end=False), capacity=2000)
    for number in range(1500):
        replay.append(episode(5, 1)._replace(episode=np.array([100 + number])))
    replay.append(episode(3, 1, first=1))
    newest = np.array([1501])
    assert newest[0] in replay.drawable()
    assert_pictures_belong(replay, newest)


def test_a_large_batch_is_taken_in_whole():
    steps = [episode(number, 10) for number in range(60)]
    names = [name for name, value in steps[0]._asdict().items() if isinstance(value, np.ndarray)]
    columns = {name: np.concatenate([getattr(one, name) for one in steps]) for name in names}
    pictures = [
        {
            name: np.concatenate([getattr(one, which)[name] for one in steps])
            for name in ("wrist", "front")
        }
        for which in ("pictures", "next_pictures")
    ]
    replay = replay_of(
        Steps(**columns, pictures=pictures[0], next_pictures=pictures[1]), capacity=1000
    )
    assert replay.pictures is not None
    assert replay.pictures.added == 660
    assert_pictures_belong(replay, np.arange(600))


def test_saved_pictures_are_found_again_and_unsaved_ones_forgotten(tmp_path):
    replay = replay_of(*[episode(number, 4) for number in range(8)], folder=tmp_path)
    replay.append(episode(9, 3, end=False))
    replay.save(tmp_path)
    replay.append(episode(9, 2, first=3))
    loaded = replay_of(folder=tmp_path)
    loaded.load(tmp_path)
    assert len(loaded) == 35
    assert loaded.pictures is not None
    assert loaded.pictures.added == 8 * 5 + 4
    assert_pictures_belong(loaded, loaded.drawable())
    loaded.append(episode(9, 5, first=3))
    assert_pictures_belong(loaded, loaded.drawable())
    assert len(loaded.drawable()) == 40


def test_steps_whose_pictures_were_overwritten_after_the_last_save_are_not_drawn(tmp_path):
    replay = replay_of(
        *[episode(number % 12, 10) for number in range(100)], capacity=900, folder=tmp_path
    )
    replay.save(tmp_path)
    for number in range(60):
        replay.append(episode(12 + number % 2, 10)._replace(episode=np.full(10, 1000 + number)))
    loaded = replay_of(capacity=900, folder=tmp_path)
    loaded.load(tmp_path)
    assert 0 < len(loaded.drawable()) < 900
    assert_pictures_belong(loaded, loaded.drawable())


def test_files_of_a_run_that_never_saved_are_begun_anew(tmp_path):
    replay_of(episode(3, 5), folder=tmp_path)
    replay = replay_of(episode(1, 2), folder=tmp_path)
    replay.save(tmp_path)
    loaded = replay_of(folder=tmp_path)
    loaded.load(tmp_path)
    assert_pictures_belong(loaded, np.arange(2))


def test_a_saved_replay_is_not_overwritten_by_one_that_was_not_loaded(tmp_path):
    replay_of(episode(3, 5), folder=tmp_path).save(tmp_path)
    with pytest.raises(HandoffError, match="Load it first"):
        replay_of(folder=tmp_path).append(episode(1, 2))


def test_state_holds_the_pictures():
    replay = replay_of(episode(0, 3), episode(1, 4))
    other = replay_of()
    other.load_state_dict(replay.state_dict())
    assert_pictures_belong(other, np.arange(7))


def test_pictures_in_memory_cannot_be_saved(tmp_path):
    with pytest.raises(HandoffError, match="are in memory"):
        replay_of(episode(0, 3)).save(tmp_path)


def test_missing_cameras_and_other_shapes_are_refused():
    steps = episode(0, 2)
    with pytest.raises(HandoffError, match="camera front are missing"):
        replay_of(steps._replace(pictures={"wrist": steps.pictures["wrist"]}))
    with pytest.raises(HandoffError, match="next_pictures of camera wrist"):
        replay_of(
            steps._replace(
                next_pictures={**steps.pictures, "wrist": np.zeros((2, 4, 4, 3), np.uint8)}
            )
        )


def test_another_capacity_in_the_same_folder_is_refused(tmp_path):
    replay_of(episode(0, 2), folder=tmp_path)
    with pytest.raises(HandoffError, match="Is it another camera or capacity"):
        replay_of(capacity=50, folder=tmp_path)


def test_sizes_name_the_cameras():
    assert sizes_of(replay_of()).pictures == CAMERAS


def mapped(steps: Steps) -> Steps:
    """The steps with maps of one channel in place of the pictures of the wrist."""
    pictures = {"wrist": steps.pictures["wrist"][..., 0][:, None].astype(np.float16) / 2}
    next_pictures = {"wrist": steps.next_pictures["wrist"][..., 0][:, None].astype(np.float16) / 2}
    return steps._replace(pictures=pictures, next_pictures=next_pictures)


def test_feature_maps_are_kept_in_half_precision_and_survive_a_restart(tmp_path):
    def new() -> Replay:
        config = ReplayConfig(capacity=20)
        return Replay(config, 1, 1, folder=tmp_path, maps=(("wrist", 1, 2, 3),))

    replay = new()
    replay.append(mapped(episode(0, 5)))
    replay.save(tmp_path)
    again = new()
    again.load(tmp_path)
    assert sizes_of(again).maps == (("wrist", 1, 2, 3),)
    batch = again.transitions(np.arange(5))
    assert batch.obs.pictures["wrist"].dtype == torch.float16
    assert batch.obs.pictures["wrist"][:, 0, 0, 0].tolist() == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert batch.next_obs.pictures["wrist"][:, 0, 1, 2].tolist() == [0.5, 1.0, 1.5, 2.0, 2.5]
    assert (tmp_path / "wrist.f16").stat().st_size == 2 * 6 * (20 + 20 // 8 + 512)


def test_pictures_in_place_of_maps_are_refused():
    replay = Replay(ReplayConfig(capacity=20), 1, 1, maps=(("wrist", 1, 2, 3),))
    with pytest.raises(HandoffError, match="float16"):
        replay.append(episode(0, 2))
