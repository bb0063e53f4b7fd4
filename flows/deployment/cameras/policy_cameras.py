"""Finds the cameras that a policy observes at an arm among those of a session, before anything is
opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from flows.config.overrides import quoted
from flows.deployment.cameras.pictures import PREFIX
from real.cameras.config import CameraConfig, check_camera
from robots.errors import HandoffError, suggest
from robots.spec import FieldSpec


def camera_overrides(arguments: Sequence[str]) -> list[str]:
    """The arguments `--camera NAME=SOURCE` as overrides of a session's options.

    Raises:
        HandoffError: a missing name or source, or a duplicate name.
    """
    sources: dict[str, str] = {}
    for argument in arguments:
        name, _, source = argument.partition("=")
        if not name or not source or name in sources:
            raise HandoffError(
                f"--camera {argument}: expected a new name and a source, e.g. front=0 or wrist=/dev/video2."
            )
        sources[name] = source
    return [f"cameras.{name}.source={quoted(source)}" for name, source in sources.items()]


def policy_cameras(
    sensors: Mapping[str, FieldSpec], cameras: Mapping[str, CameraConfig]
) -> dict[str, CameraConfig]:
    """The cameras of a session, with the size of the pictures that the policy was trained with.

    Args:
        sensors: sensors of the policy's contract.
        cameras: cameras of the session by name. A policy without sensors observes none of them.

    Raises:
        HandoffError: a sensor that is no camera or has no source, a camera that the policy does not
            observe, another size than the policy's, or an option that a kind of camera lacks.
    """
    for name, camera in cameras.items():
        check_camera(name, camera)
    if not sensors:
        return dict(cameras)
    fields = sensor_fields(sensors)
    missing = [name for name in fields if name not in cameras]
    if missing:
        given = ", ".join(cameras) or "none"
        raise HandoffError(
            f"deploy: the policy observes {_named(fields)}, and no source is given for {_named(missing)}; given are: "
            f"{given}. Add --camera {missing[0]}=SOURCE."
        )
    for name in cameras:
        if name not in fields:
            raise HandoffError(
                f"deploy: the policy observes no camera '{name}'. Leave it out; {suggest(name, list(fields))}"
            )
    return {name: _sized(name, sensors[field], cameras[name]) for name, field in fields.items()}


def sensor_fields(sensors: Mapping[str, FieldSpec]) -> dict[str, str]:
    """The sensors of a contract by the name of the camera: `front` for `image_front`, and the
    sensor's own name for any other, such as `image`.

    Raises:
        HandoffError: a sensor that is no picture.
    """
    fields = {}
    for sensor, spec in sensors.items():
        if len(spec.shape) != 3 or spec.shape[-1] != 3 or spec.dtype != "uint8":
            raise HandoffError(
                f"deploy: the policy needs the sensor {sensor} {spec.shape} of {spec.dtype}; a session at an arm has "
                "colour pictures alone. Point clouds and depth are not supported there."
            )
        fields[sensor.removeprefix(PREFIX) or sensor] = sensor
    return fields


def _sized(name: str, spec: FieldSpec, camera: CameraConfig) -> CameraConfig:
    """The camera with the size of the contract's pictures."""
    height, width = spec.shape[:2]
    usual = CameraConfig(source=camera.source)
    if camera.height not in (usual.height, height) or camera.width not in (None, width):
        raise HandoffError(
            f"deploy: cameras.{name} has height {camera.height} and width {camera.width}, the policy takes "
            f"pictures of {height} x {width} px (height x width). Leave the two out."
        )
    return replace(camera, height=height, width=width)


def _named(names: Sequence[str] | Mapping[str, str]) -> str:
    return ", ".join(f"camera {name}" for name in names)
