"""Several trackers over real websockets: each field has its own range, speed and age."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from websockets.sync.server import serve

from real.deploy.field_trackers import FieldTrackers, check_trackers, field_trackers
from real.deploy.tracked_field import FieldTrackerConfig, TrackedFieldConfig
from robots.contract import Contract
from robots.control.training_range import InputRange
from robots.errors import HandoffError, SafetyError
from robots.spec import WXYZ, FieldSpec
from robots.wire.policy import pack
from tests.real.console.pages import until
from tests.real.fakes import contract

CUBE = FieldSpec(shape=(3,), unit="m", frame="base")
TURNED = FieldSpec(shape=(4,), frame="base", names=WXYZ)
LEVER = FieldSpec(shape=(2,), unit="rad, rad/s")
OPENING = FieldSpec(shape=(1,), unit="m")
OBJECTS = ["cube_position", "cube_quaternion", "lever", "opening", "goal"]
VALUES = {
    "cube_position": [0.5, 0.1, 0.02],
    "cube_quaternion": [1.0, 0.0, 0.0, 0.0],
    "lever": [0.3, 0.0],
    "opening": [0.05],
}


def stated() -> Contract:
    known = InputRange(
        low=(0.0,), high=(0.2,), q01=(0.0,), q99=(0.2,), refuse_below=(-0.1,), refuse_above=(0.3,)
    )
    fields = {"cube_position": CUBE, "cube_quaternion": TURNED, "lever": LEVER}
    return contract(
        task="shelf",
        observation={**fields, "opening": OPENING, "goal": CUBE},
        training_range={"opening": known},
    )


class Lab:
    """Sends its values, with the next number of a picture, a hundred times a second."""

    def __init__(self, *fields: str) -> None:
        self.values: dict[str, Any] = {name: VALUES[name] for name in fields}
        self.frame = 0
        self.stuck = False

    def handle(self, connection: Any) -> None:
        while True:
            self.frame += not self.stuck
            connection.send(pack({**self.values, "frame": self.frame}))
            time.sleep(0.01)


@contextmanager
def running(lab: Lab) -> Iterator[str]:
    with serve(lab.handle, "127.0.0.1", 0, compression=None) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}"


@contextmanager
def tracked(labs: Mapping[str, Lab], **limits: TrackedFieldConfig) -> Iterator[FieldTrackers]:
    """Trackers of all fields of the labs, and a constant goal."""
    with running(labs["cube"]) as cube, running(labs["bench"]) as bench:
        configs = {
            name: FieldTrackerConfig(
                uri=uri,
                wait=0.01,
                max_age=0.2,
                first_seconds=2.0,
                fields={
                    field: limits.get(field, TrackedFieldConfig()) for field in labs[name].values
                },
            )
            for name, uri in (("cube", cube), ("bench", bench))
        }
        check_trackers(configs, {"goal": (0.4, 0.0, 0.2)}, stated(), OBJECTS)
        with field_trackers(configs, {"goal": (0.4, 0.0, 0.2)}, stated()) as trackers:
            yield trackers


def labs() -> dict[str, Lab]:
    return {"cube": Lab("cube_position", "cube_quaternion"), "bench": Lab("lever", "opening")}


def refused(trackers: FieldTrackers) -> str:
    """Waits until a value is too old; returns the message."""
    messages: list[str] = []

    def is_old() -> bool:
        try:
            trackers.observe(np.zeros(6))
        except SafetyError as error:
            messages.append(str(error))
        return bool(messages)

    until(is_old, 3.0)
    return messages[0]


def test_several_trackers_and_a_constant_make_one_observation() -> None:
    with tracked(labs()) as trackers:
        observed = trackers.observe(np.zeros(6))
    assert observed.keys() == {*VALUES, "goal"}
    for name, value in VALUES.items():
        np.testing.assert_allclose(observed[name], value, rtol=1e-6)
        assert observed[name].dtype == np.float32
    np.testing.assert_allclose(observed["goal"], [0.4, 0.0, 0.2], rtol=1e-6)


def test_one_tracker_that_stands_is_named_with_its_field() -> None:
    both = labs()
    with tracked(both) as trackers:
        both["bench"].stuck = True
        message = refused(trackers)
    assert "newest lever is" in message
    assert "it repeats an old picture" in message


def test_a_field_that_a_picture_does_not_show_grows_old_alone() -> None:
    both = labs()
    with tracked(both, opening=TrackedFieldConfig(max_age=0.6)) as trackers:
        del both["bench"].values["opening"]
        time.sleep(0.4)
        trackers.observe(np.zeros(6))
        message = refused(trackers)
    assert "newest opening is 0.6" in message
    assert "limit 0.6 s (its messages leave the field out)" in message


IMPOSSIBLE: dict[str, tuple[str, str, list[float], str]] = {
    "a jump": ("cube", "cube_position", [0.9, 0.1, 0.02], "m and 0.00 rad from that of"),
    "a turn": ("cube", "cube_quaternion", [0.0, 1.0, 0.0, 0.0], "3.14 rad from that of"),
    "no quaternion": (
        "cube",
        "cube_quaternion",
        [0.5, 0.0, 0.0, 0.0],
        "of length 0.50, expected 1",
    ),
    "degrees": ("bench", "lever", [90.0, 0.0], "is it in degrees?"),
    "beyond training": ("bench", "opening", [0.31], "is outside its range, [-0.1] to [0.3]"),
    "another size": ("bench", "opening", [0.1, 0.2], "expected 1 finite numbers [m]"),
    "no number": ("bench", "opening", [float("nan")], "expected 1 finite numbers [m]"),
}


@pytest.mark.parametrize("kind", IMPOSSIBLE)
def test_what_cannot_be_is_not_taken(kind: str) -> None:
    lab, field, value, why = IMPOSSIBLE[kind]
    both = labs()
    slow = TrackedFieldConfig(max_speed=0.1, max_turn=1.0)
    with tracked(both, cube_position=slow, cube_quaternion=slow) as trackers:
        both[lab].values[field] = value
        assert why in refused(trackers)


def with_fields(**fields: TrackedFieldConfig) -> dict[str, FieldTrackerConfig]:
    return {"one": FieldTrackerConfig(uri="ws://127.0.0.1:1", fields=fields)}


ANY = TrackedFieldConfig()
REFUSED: dict[str, tuple[Callable[[], dict[str, FieldTrackerConfig]], dict[str, Any], str]] = {
    "no address": (
        lambda: {"one": FieldTrackerConfig(fields={"lever": ANY})},
        {},
        r"trackers\.one: uri is empty",
    ),
    "no WebSocket": (
        lambda: {"one": FieldTrackerConfig(uri="http://127.0.0.1:1", fields={"lever": ANY})},
        {},
        r"trackers\.one: uri is 'http://127\.0\.0\.1:1', expected such as ws://",
    ),
    "no field": (with_fields, {}, r"trackers\.one: it has no fields"),
    "unknown": (lambda: with_fields(levr=ANY), {}, r"observes no field 'levr' .*lever"),
    "the arm's own": (lambda: with_fields(q=ANY), {}, "observes no field 'q'"),
    "twice": (
        lambda: with_fields(lever=ANY),
        {"lever": (0.0, 0.0)},
        "is given by constants as well",
    ),
    "bounds": (
        lambda: with_fields(lever=TrackedFieldConfig(low=(0.0,))),
        {},
        "low of lever has 1 values, the field has 2 entries",
    ),
    "swapped": (
        lambda: with_fields(opening=TrackedFieldConfig(low=(0.2,), high=(0.1,))),
        {},
        "expected low <= high",
    ),
    "constant": (dict, {"goal": (0.1,)}, r"constants\.goal: 1 values, the field has 3 entries"),
    "far": (
        dict,
        {"opening": (50.0,)},
        r"constants\.opening: opening.* is 50 m, in the training data it was 0 to 0\.2, limits -0\.1",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_trackers_that_fit_no_policy_are_refused(kind: str) -> None:
    make, constants, why = REFUSED[kind]
    with pytest.raises(HandoffError, match=why):
        check_trackers(make(), constants, stated(), OBJECTS)
