from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from robots.config import validate
from robots.episodes.config import FieldMapConfig
from robots.episodes.field_map import MappedEpisodes
from robots.errors import HandoffError
from robots.language.text import encode, text_field
from robots.spec import FieldSpec
from tests.robots.episodes.array_source import ArraySource

FIELDS = {
    "observation.state": FieldSpec(
        shape=(8,),
        dtype="float64",
        role="observation",
        names=((*(f"j{i}" for i in range(7)), "width"),),
    ),
    "pose": FieldSpec(shape=(7,), role="observation"),
    "cam": FieldSpec(shape=(3, 4, 6), dtype="uint8", role="observation"),
    "actions": FieldSpec(shape=(7,), unit="rad", role="action"),
    "reward": FieldSpec(shape=(), role="outcome"),
}
STEPS = 5


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    pose = rng.normal(size=(STEPS, 7)).astype(np.float32)
    pose[:, 3:] = [0.0, 0.0, 0.0, 2.0]
    return {
        "observation.state": rng.normal(size=(STEPS, 8)),
        "pose": pose,
        "cam": rng.integers(256, size=(STEPS, 3, 4, 6), dtype=np.uint8),
        "actions": rng.normal(size=(STEPS, 7)).astype(np.float32),
        "reward": np.arange(STEPS, dtype=np.float32),
    }


def source(**options: Any) -> ArraySource:
    return ArraySource(FIELDS, [arrays()], **options)


def mapped(values: dict[str, Any], **options: Any) -> tuple[MappedEpisodes, dict[str, np.ndarray]]:
    mapping = validate(FieldMapConfig, values, "map")
    episodes = MappedEpisodes(source(**options), mapping)
    ((streams, _),) = episodes.episodes(0, 1)
    return episodes, streams["policy"]


def refused(values: dict[str, Any], **options: Any) -> str:
    with pytest.raises(HandoffError) as caught:
        mapped(values, **options)
    return str(caught.value)


def test_without_a_rule_arrays_keep_their_names_and_the_one_action_is_called_action() -> None:
    episodes, fields = mapped({})
    assert list(fields) == ["observation.state", "pose", "cam", "action", "reward"]
    specs = episodes.schema.streams["policy"].fields
    assert specs["action"].unit == "rad"
    assert [spec.role for spec in specs.values()][3:] == ["action", "outcome"]
    for name, old in (("action", "actions"), ("observation.state", "observation.state")):
        assert fields[name].dtype == arrays()[old].dtype
        np.testing.assert_array_equal(fields[name], arrays()[old])


def test_a_rule_joins_cuts_scales_and_names_entries() -> None:
    rule = {
        "source": ["observation.state", "actions"],
        "entries": [6, 9],
        "scale": 1000.0,
        "offset": 1.0,
        "unit": "N",
        "names": ["a", "b", "c"],
    }
    episodes, fields = mapped({"fields": {"q": rule}, "rest": "drop"})
    assert list(fields) == ["q"]
    given = arrays()
    joined = np.concatenate([given["observation.state"], given["actions"]], axis=1)
    np.testing.assert_allclose(fields["q"], joined[:, 6:9] * 1000 + 1, rtol=1e-6)
    spec = episodes.schema.streams["policy"].fields["q"]
    assert (spec.shape, spec.dtype, spec.unit) == ((3,), "float32", "N")
    assert spec.names == (("a", "b", "c"),)
    assert spec.role == "observation"


def test_names_of_cut_entries_follow_them() -> None:
    rule = {"source": "observation.state", "entries": [6, 8]}
    episodes, _ = mapped({"fields": {"q": rule}})
    assert episodes.schema.streams["policy"].fields["q"].names == (("j6", "width"),)


def test_a_quaternion_becomes_another_form_of_rotation() -> None:
    rotation = {"given": "quaternion_xyzw", "stored": "rotation_6d", "first": 3}
    episodes, fields = mapped({"fields": {"pose6": {"source": "pose", "rotation": rotation}}})
    np.testing.assert_allclose(fields["pose6"][:, :3], arrays()["pose"][:, :3])
    np.testing.assert_allclose(fields["pose6"][:, 3:], [[1, 0, 0, 0, 1, 0]] * STEPS, atol=1e-6)
    assert episodes.schema.streams["policy"].fields["pose6"].shape == (9,)


def test_actions_become_relative_to_the_state_and_absolute_again() -> None:
    q = {"source": "observation.state", "entries": [0, 7]}
    relative = {"source": "actions", "relative_to": "q"}
    _, fields = mapped({"fields": {"q": q, "action": relative}})
    state = arrays()["observation.state"][:, :7]
    np.testing.assert_allclose(fields["action"], arrays()["actions"] - state, rtol=1e-5, atol=1e-6)
    absolute = {"source": "actions", "added_to": "q"}
    _, fields = mapped({"fields": {"q": q, "action": absolute}})
    np.testing.assert_allclose(fields["action"], arrays()["actions"] + state, rtol=1e-5, atol=1e-6)


def test_pictures_with_colours_first_or_in_reverse_become_rgb_of_a_stated_size() -> None:
    _, fields = mapped({"fields": {"front": {"source": "cam", "image": "bgr"}}})
    expected = np.moveaxis(arrays()["cam"], 1, -1)[..., ::-1]
    np.testing.assert_array_equal(fields["front"], expected)
    episodes, fields = mapped(
        {"fields": {"front": {"source": "cam", "image": "rgb", "size": [2, 3]}}}
    )
    assert fields["front"].shape == (STEPS, 2, 3, 3)
    spec = episodes.schema.streams["policy"].fields["front"]
    assert (spec.shape, spec.unit) == ((2, 3, 3), "u8")
    blocks = np.moveaxis(arrays()["cam"], 1, -1).reshape(STEPS, 2, 2, 3, 2, 3).mean(axis=(2, 4))
    np.testing.assert_allclose(fields["front"], blocks, atol=1.0)


def test_a_map_gives_task_rate_instruction_robot_and_the_meaning_of_actions() -> None:
    values = {
        "task": "fold",
        "rate_hz": 25.0,
        "robot": "fr3",
        "instruction": "fold it",
        "action_interface": "joint_target",
        "rename": {"observation.state": "state"},
        "drop": ["po*", "cam"],
    }
    episodes = MappedEpisodes(source(robot="xarm"), validate(FieldMapConfig, values, "map"))
    assert (episodes.schema.name, episodes.schema.robot) == ("fold", "fr3")
    stream = episodes.schema.streams["policy"]
    assert stream.rate_hz == 25.0
    assert list(stream.fields) == ["state", "action", "reward"]
    assert stream.fields["action"].interface == "joint_target"
    ((_, metadata),) = episodes.episodes(0, 1)
    assert metadata == {"source_robot": "xarm", "instruction": "fold it", "source_episode": 0}


def test_an_instruction_of_the_map_replaces_that_of_every_step() -> None:
    fields = {**FIELDS, "instruction": text_field(16)}
    words = encode(["go", "stop", "go", "go", "go"], 16)
    given = ArraySource(fields, [{**arrays(), "instruction": words}])
    for values, kept in (({"instruction": "fold it"}, False), ({}, True)):
        episodes = MappedEpisodes(given, validate(FieldMapConfig, values, "map"))
        assert ("instruction" in episodes.schema.streams["policy"].fields) == kept


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rename": {"statte": "x"}}, "the data set has no array 'statte'"),
        ({"fields": {"q": {"source": "po"}}}, "the data set has no array 'po'"),
        ({"drop": ["x*"]}, r"no array is called 'x*'"),
        ({"rename": {"pose": "cam"}}, "two fields would be called 'cam'"),
        ({"rest": "drop"}, "no field is left"),
        ({"fields": {"q": {"source": "pose", "entries": [5, 9]}}}, r"[5, 9] of 7 entries"),
        ({"fields": {"q": {"source": ["pose", "cam"]}}}, "expected vectors"),
        ({"fields": {"q": {"source": "pose", "image": "rgb"}}}, "expected one uint8 picture"),
        ({"fields": {"q": {"source": "pose", "names": ["a"]}}}, "1 names, expected 7"),
        (
            {"fields": {"q": {"source": "pose", "rotation": {"given": "matrix"}}}},
            "entries 0 to 9 of 7",
        ),
        (
            {"fields": {"q": {"source": "actions", "relative_to": "stat"}}},
            "q.relative_to: names 'stat'",
        ),
        ({"fields": {"q": {"source": "actions", "added_to": "stat"}}}, "q.added_to: names 'stat'"),
        (
            {"fields": {"q": {"source": "pose", "rotation": {"given": "matrix", "degrees": True}}}},
            "q.rotation",
        ),
        (
            {
                "fields": {
                    "q": {
                        "source": "pose",
                        "rotation": {"given": "quaternion_xyzw", "first": 3, "degrees": True},
                    }
                }
            },
            "q.rotation.degrees: is true, but the form quaternion_xyzw has no angles",
        ),
        (
            {"fields": {"q": {"source": "actions", "relative_to": "observation.state"}}},
            "expected the same entries",
        ),
        (
            {"fields": {"q": {"source": "pose", "rotation": {"given": "quaternion_xyzw"}}}},
            "field 'q': rotation",
        ),
        ({"drop": ["actions"], "action_interface": "joint_target"}, "no field is called 'action'"),
    ],
)
def test_a_rule_that_does_not_fit_is_refused(values: dict[str, Any], message: str) -> None:
    if message == "field 'q': rotation":
        broken = arrays()
        broken["pose"][2, :4] = 0.0
        mapping = validate(FieldMapConfig, values, "map")
        with pytest.raises(HandoffError, match="episode 0: field 'q': rotation"):
            list(MappedEpisodes(ArraySource(FIELDS, [broken]), mapping).episodes(0, 1))
        return
    assert message in refused(values)


def test_a_rate_that_nobody_states_is_asked_for() -> None:
    assert "does not state its rate" in refused({}, rate_hz=None)
    episodes, _ = mapped({"rate_hz": 50.0}, rate_hz=None)
    assert episodes.schema.streams["policy"].rate_hz == 50.0


def test_entries_that_no_field_takes_are_named() -> None:
    rules = {"q": {"source": "observation.state", "entries": [0, 6]}}
    episodes, _ = mapped({"fields": rules})
    (note,) = episodes.notes
    assert note.startswith(
        "observation.state: no field takes the entries 6 (j6), 7 (width) of 8, so they are not in the store"
    )


def test_entries_that_another_field_takes_are_not_named() -> None:
    rules = {
        "q": {"source": "observation.state", "entries": [0, 7]},
        "gripper": {"source": "observation.state", "entries": [7, 8]},
    }
    assert mapped({"fields": rules})[0].notes == ()


def test_entries_of_joined_arrays_are_counted_over_both() -> None:
    rule = {"source": ["observation.state", "pose"], "entries": [2, 11]}
    first, second = mapped({"fields": {"x": rule}})[0].notes
    assert "the entries 0 (j0), 1 (j1) of 8" in first
    assert "the entries 3, 4, 5, 6 of 7" in second


def test_an_array_that_is_dropped_has_no_note() -> None:
    rules = {"q": {"source": "observation.state", "entries": [0, 6]}}
    assert mapped({"fields": rules, "drop": ["observation.state"]})[0].notes == ()


@pytest.mark.parametrize(
    ("rotation", "entries", "unit"),
    [
        ({"given": "quaternion_xyzw", "stored": "euler_xyz"}, [3, 7], "rad"),
        ({"given": "quaternion_xyzw", "stored": "rotation_6d"}, [3, 7], "1"),
        (
            {"given": "quaternion_xyzw", "stored": "rotation_vector", "first": 3},
            [0, 7],
            "1, 1, 1, rad, rad, rad",
        ),
    ],
)
def test_a_turned_rotation_has_the_unit_of_its_form(
    rotation: dict[str, Any], entries: list[int], unit: str
) -> None:
    rule = {"source": "pose", "entries": entries, "rotation": rotation}
    episodes, _ = mapped({"fields": {"r": rule}})
    assert episodes.schema.streams["policy"].fields["r"].unit == unit


def test_angles_in_degrees_are_stored_in_radians() -> None:
    rotation = {"given": "euler_xyz", "stored": "euler_xyz", "degrees": True}
    rule = {"source": "observation.state", "entries": [0, 3], "scale": 10.0, "rotation": rotation}
    _, fields = mapped({"fields": {"r": rule}})
    given = np.deg2rad(10.0 * arrays()["observation.state"][:, :3])
    np.testing.assert_allclose(fields["r"], given, atol=1e-6)


def test_an_array_of_which_a_rule_takes_entries_is_kept_whole_under_a_new_name() -> None:
    width = {"source": "observation.state", "entries": [7, 8]}
    episodes, fields = mapped(
        {"fields": {"width": width}, "rename": {"observation.state": "all_q"}}
    )
    assert fields["all_q"].shape == (STEPS, 8)
    assert np.array_equal(fields["width"], fields["all_q"][:, 7:].astype(np.float32))
    assert not episodes.notes


def test_a_rate_that_overrules_the_stated_one_is_told() -> None:
    assert mapped({"rate_hz": 50}, rate_hz=30.0)[0].notes == (
        "the data set states 30 Hz, but rate_hz: 50 of the map is taken",
    )
    assert not mapped({"rate_hz": 30}, rate_hz=30.0)[0].notes


@pytest.mark.parametrize(
    ("unit", "words"),
    [("deg", "multiply by 0.0174.*state rad"), ("mm", "multiply by 0.001 .*state m")],
)
def test_a_unit_that_is_not_si_is_refused_with_its_factor(unit: str, words: str) -> None:
    rule = {"source": "pose", "unit": unit}
    with pytest.raises(HandoffError, match=words):
        validate(FieldMapConfig, {"fields": {"pose": rule}}, "map")


def test_a_word_where_a_list_is_expected_is_told_in_words() -> None:
    with pytest.raises(
        HandoffError, match=r"'map\.drop' is 'cam': expected a list, such as \['cam'\]"
    ):
        validate(FieldMapConfig, {"drop": "cam"}, "map")


def test_every_entry_keeps_its_own_unit() -> None:
    seven = FieldSpec(shape=(7,), unit="m, m, m, rad, rad, rad, 1", role="action")
    fields = {**FIELDS, "actions": seven, "base": replace(seven, role="observation")}
    values = {**arrays(), "base": arrays()["actions"]}
    rules = {
        "action": {"source": "actions", "relative_to": "base"},
        "turned": {
            "source": "base",
            "rotation": {"given": "rotation_vector", "stored": "quaternion_wxyz", "first": 3},
        },
        "cut": {"source": "base", "entries": [2, 5]},
    }
    mapping = validate(FieldMapConfig, {"fields": rules, "rename": {"base": "base"}}, "map")
    specs = MappedEpisodes(ArraySource(fields, [values]), mapping).schema.streams["policy"].fields
    assert specs["action"].unit == "m, m, m, rad, rad, rad, 1"
    assert specs["turned"].unit == "m, m, m, 1, 1, 1, 1, 1"
    assert specs["cut"].unit == "m, rad, rad"


def test_a_map_that_leaves_no_action_says_so() -> None:
    (note,) = mapped({"drop": ["actions"]})[0].notes
    assert note.startswith("no field is called 'action'")
