from dataclasses import replace

import numpy as np
import pytest

from robots.episodes.curation.mirror import check_mirrored, mirrored
from robots.episodes.formats.pusht import STREAM, pusht_schema
from robots.errors import HandoffError


def episode(angle: float = 0.0) -> dict[str, dict[str, np.ndarray]]:
    picture = np.zeros((1, 96, 96, 3), np.uint8)
    picture[0, 10, 20] = 255  # 10 rows from the top, 20 columns from the left
    fields = {
        "agent": np.array([[0.1, 0.2]]),
        "keypoints": np.tile(np.array([0.35, 0.2]), (1, 9, 1)),
        "block_pose": np.array([[0.3, 0.2, angle]]),
        "action": np.array([[0.0, 0.512]]),
        "image": picture,
    }
    return {
        STREAM: {
            name: values.astype(np.uint8 if name == "image" else np.float32)
            for name, values in fields.items()
        }
    }


def test_points_are_reflected_about_the_diagonal_from_bottom_left_to_top_right():
    fields = mirrored(episode())[STREAM]
    assert fields["agent"][0] == pytest.approx([0.312, 0.412])
    assert fields["action"][0] == pytest.approx([0.0, 0.512], abs=1e-6)


def test_the_block_turns_and_its_points_stay_where_they_are_on_it():
    fields = mirrored(episode())[STREAM]
    assert fields["block_pose"][0] == pytest.approx([0.312, 0.212, np.pi / 2])
    # 5 cm along the block's own x, which the turned block has along y.
    assert fields["keypoints"][0, 0] == pytest.approx([0.312, 0.262])


def test_the_goal_is_its_own_mirror_image():
    given = episode()
    given[STREAM]["block_pose"] = np.array([[0.256, 0.256, np.pi / 4]], np.float32)
    assert mirrored(given)[STREAM]["block_pose"][0] == pytest.approx([0.256, 0.256, np.pi / 4])


def test_a_picture_is_reflected_about_the_same_diagonal():
    picture = mirrored(episode())[STREAM]["image"]
    assert np.argwhere(picture[0, :, :, 0]).tolist() == [[75, 85]]  # row 95 - 20, column 95 - 10


def test_mirrored_twice_is_the_episode_itself():
    given = episode(0.7)
    for name, values in mirrored(mirrored(given))[STREAM].items():
        assert values.dtype == given[STREAM][name].dtype
        assert np.allclose(values, given[STREAM][name], atol=1e-6), name


def test_another_task_is_refused():
    check_mirrored(pusht_schema(images=True))
    with pytest.raises(HandoffError, match="episodes of 'pick' with the fields of another task"):
        check_mirrored(replace(pusht_schema(images=False), name="pick"))


def test_a_further_field_is_refused():
    schema = pusht_schema(images=False)
    stream = schema.streams[STREAM]
    further = replace(stream, fields={**stream.fields, "force": stream.fields["agent"]})
    with pytest.raises(HandoffError, match="policy/force"):
        check_mirrored(replace(schema, streams={STREAM: further}))
