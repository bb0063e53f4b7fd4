"""The cameras that a policy observes, found among those of a session."""

from __future__ import annotations

import pytest

from flows.deployment.cameras.policy_cameras import (
    camera_overrides,
    policy_cameras,
    sensor_fields,
)
from real.cameras.config import CameraConfig
from robots.errors import HandoffError
from robots.spec import FieldSpec


def picture(height: int, width: int) -> FieldSpec:
    return FieldSpec(shape=(height, width, 3), dtype="uint8", unit="u8")


SENSORS = {"image_front": picture(96, 128), "image_wrist": picture(64, 64)}
FRONT, WRIST = CameraConfig(source="0"), CameraConfig(source="film.mp4")


def test_cameras_have_the_size_of_the_contract() -> None:
    cameras = policy_cameras(SENSORS, {"wrist": WRIST, "front": FRONT})
    sizes = {name: (camera.height, camera.width) for name, camera in cameras.items()}
    assert sizes == {"front": (96, 128), "wrist": (64, 64)}


def test_every_camera_of_the_contract_needs_a_source() -> None:
    with pytest.raises(
        HandoffError, match=r"no source is given for camera wrist; given are: front"
    ):
        policy_cameras(SENSORS, {"front": FRONT})


def test_a_camera_that_the_policy_does_not_observe_is_refused() -> None:
    given = {"front": FRONT, "wrist": WRIST, "fronts": FRONT}
    with pytest.raises(
        HandoffError, match=r"no camera 'fronts'. Leave it out; did you mean 'front'"
    ):
        policy_cameras(SENSORS, given)


def test_a_policy_without_pictures_observes_none() -> None:
    assert policy_cameras({}, {"front": FRONT}) == {"front": FRONT}
    assert sensor_fields({}) == {}


def test_another_size_than_the_contracts_is_refused() -> None:
    given = {"front": CameraConfig(source="0", height=120), "wrist": WRIST}
    with pytest.raises(HandoffError, match=r"the policy takes pictures of 96 x 128 px"):
        policy_cameras(SENSORS, given)


def test_an_option_that_a_kind_of_camera_lacks_is_refused_by_name() -> None:
    given = {"front": FRONT, "wrist": CameraConfig(source="film.mp4", exposure=0.01)}
    with pytest.raises(HandoffError, match=r"a video file, film.mp4, has no option 'exposure'"):
        policy_cameras(SENSORS, given)


def test_a_sensor_without_the_prefix_is_the_camera_of_its_own_name() -> None:
    assert sensor_fields({"image": picture(96, 96)}) == {"image": "image"}


def test_point_clouds_are_refused() -> None:
    cloud = FieldSpec(shape=(512, 3), unit="m")
    with pytest.raises(HandoffError, match="needs the sensor points"):
        policy_cameras({"points": cloud}, {})


def test_cameras_are_named_and_have_a_source() -> None:
    assert camera_overrides(["front=0", "wrist=rtsp://cam?x=1"]) == [
        "cameras.front.source='0'",
        "cameras.wrist.source='rtsp://cam?x=1'",
    ]
    for wrong in (["front"], ["=0"], ["front="], ["front=0", "front=1"]):
        with pytest.raises(HandoffError, match="expected a new name and a source"):
            camera_overrides(wrong)
