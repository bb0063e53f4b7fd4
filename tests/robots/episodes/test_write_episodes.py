from functools import partial

import numpy as np
import pytest

from robots.episodes.demonstrations import open_demonstrations
from robots.episodes.write_episodes import write_episodes
from robots.errors import HandoffError


def episode(length: int = 5, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "position": rng.normal(size=(length, 6)),
        "camera": rng.integers(0, 256, (length, 8, 10, 3)).astype(np.uint8),
        "reward": np.zeros(length, np.float32),
        "targets": rng.normal(size=(length, 7)).astype(np.float32),
    }


def write(path, episodes, **changes):
    options = {"task": "pour", "rate_hz": 30.0, "action": "targets", **changes}
    return write_episodes(path, episodes, **options)


def test_episodes_from_a_generator_are_demonstrations(tmp_path):
    given = [episode(5), episode(3, seed=1)]
    write(
        tmp_path / "s.zarr",
        (one for one in given),
        units={"position": "rad", "targets": "rad"},
        instructions=["pour", "stir"],
        metadata=[{"success": True}, {"success": False}],
        robot="fr3",
    )
    with open_demonstrations(tmp_path / "s.zarr", images=True) as demonstrations:
        schema = demonstrations.schema
        read = list(demonstrations.episodes(0, 2))
    fields = schema.stream("policy").fields
    assert (schema.name, schema.robot, schema.stream("policy").rate_hz) == ("pour", "fr3", 30.0)
    assert {name: (spec.role, spec.unit) for name, spec in fields.items()} == {
        "position": ("observation", "rad"),
        "camera": ("observation", "u8"),
        "reward": ("outcome", "1"),
        "action": ("action", "rad"),
    }
    streams, metadata = read[1]
    np.testing.assert_array_equal(streams["policy"]["action"], given[1]["targets"])
    np.testing.assert_array_equal(streams["policy"]["camera"], given[1]["camera"])
    assert metadata == {"instruction": "stir", "success": False, "source_episode": 1}


def test_lists_of_numbers_are_arrays(tmp_path):
    given = [{"position": [[0.0], [1.0]], "action": [[1.0], [2.0]]}]
    store = write_episodes(tmp_path / "s.zarr", given, task="t", rate_hz=1.0)  # type: ignore[arg-type]
    assert store.read(0, "policy")["position"].tolist() == [[0.0], [1.0]]


def shorter() -> dict[str, np.ndarray]:
    return {**episode(), "position": episode()["position"][:-1]}


def without_action() -> dict[str, np.ndarray]:
    return {name: array for name, array in episode().items() if name != "targets"}


@pytest.mark.parametrize(
    ("episodes", "changes", "message"),
    [
        ([], {}, "no episode was given"),
        ([episode(), shorter()], {}, "episode 1: policy: fields of unequal length"),
        (
            [without_action()],
            {},
            "episode 0: no array is called 'targets'. Set action= to the name of the action; the episode has ",
        ),
        ([episode()], {"action": "target"}, "did you mean 'targets'"),
        ([{**episode(), "words": np.array(["a"] * 5)}], {}, "Give words by instructions="),
        ([{**episode(), "seed": np.array(3)}], {}, "is the single number 3"),
        ([{**episode(), "action": np.zeros(5)}], {}, "both 'targets' and 'action' are given"),
        ([episode(), {**episode(), "camera": np.zeros((5, 9, 9, 3), np.uint8)}], {}, "camera"),
        ([{**episode(), "position": np.full((5, 6), np.nan)}], {}, "is nan, expected finite"),
        ([{**episode(), "bad name": np.zeros(5)}], {}, "'bad name' cannot name an array"),
        ([episode()], {"units": {"speed": "m"}}, "units: no array is called 'speed'"),
        ([episode()] * 2, {"instructions": ["one"]}, "episode 1: instructions: has no entry"),
        ([episode()], {"instructions": ["one", "two"]}, "2 entries for 1 episodes"),
        ([episode()], {"instructions": "pour"}, "expected a sequence"),
        ([episode()], {"metadata": [{"x": np.zeros(2)}]}, "Only JSON values"),
        ([episode()], {"rate_hz": 0.0}, "expected more than 0"),
    ],
)
def test_what_cannot_be_stored_is_explained_and_leaves_nothing(
    tmp_path, episodes, changes, message
):
    with pytest.raises(HandoffError) as caught:
        write(tmp_path / "s.zarr", episodes, **changes)
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("pictures", "found", "hint"),
    [
        (
            np.zeros((5, 8, 10, 3), np.float32),
            "(T, 8, 10, 3) and dtype float32",
            "(x * 255).astype",
        ),
        (
            np.full((5, 8, 10, 3), 200.0),
            "(T, 8, 10, 3) and dtype float64",
            ": (x).astype(np.uint8)",
        ),
        (np.zeros((5, 8, 10, 3), int), "(T, 8, 10, 3) and dtype int64", ": (x).astype(np.uint8)"),
        (
            np.zeros((5, 3, 8, 10), np.uint8),
            "(T, 3, 8, 10) and dtype uint8",
            "np.moveaxis(x, 1, -1).",
        ),
        (np.zeros((5, 3, 8, 10)), "(T, 3, 8, 10) and dtype float64", "and convert colours"),
        (np.zeros((5, 8, 10, 4), np.uint8), "(T, 8, 10, 4) and dtype uint8", "x[..., :3]"),
        (np.zeros((5, 8, 10, 1), np.uint16), "(T, 8, 10, 1) and dtype uint16", "x[..., 0]"),
        (np.zeros((5, 2, 8, 10, 3), np.uint8), "(T, 2, 8, 10, 3)", "an array of its own"),
        (
            np.zeros((5, 6, 6, 6), np.float32),
            "(T, 6, 6, 6) and dtype float32",
            "reshape(len(x), -1)",
        ),
    ],
)
def test_pictures_of_another_type_or_order_are_no_vectors(tmp_path, pictures, found, hint):
    with pytest.raises(HandoffError) as caught:
        write(tmp_path / "s.zarr", [{**episode(), "camera": pictures}])
    said = str(caught.value)
    assert said.startswith(f"episode 0: 'camera' has the shape {found}")
    assert "expected of a picture is (T, height, width, 3) of uint8" in said
    assert hint in said
    assert list(tmp_path.iterdir()) == []


def test_matrices_point_clouds_and_depth_are_stored_as_they_are(tmp_path):
    given = {
        **episode(),
        "base_T_ee": np.zeros((5, 4, 4)),
        "points": np.zeros((5, 100, 3), np.float32),
        "depth": np.zeros((5, 8, 10), np.uint16),
    }
    fields = write(tmp_path / "s.zarr", [given]).schema.stream("policy").fields
    assert [fields[name].unit for name in ("base_T_ee", "points", "depth")] == ["1", "1", "1"]
    assert fields["points"].shape == (100, 3)


def test_an_existing_store_is_not_overwritten(tmp_path):
    write(tmp_path / "s.zarr", [episode()])
    with pytest.raises(HandoffError, match="already exists"):
        write(tmp_path / "s.zarr", [episode()])
    with open_demonstrations(tmp_path / "s.zarr", images=True) as demonstrations:
        assert demonstrations.num_episodes == 1


def test_labels_and_units_of_another_kind_are_refused(tmp_path) -> None:
    episode = {"q": np.zeros((3, 2), np.float32), "action": np.zeros((3, 2), np.float32)}
    written = partial(write_episodes, tmp_path / "s.zarr", [episode], task="t", rate_hz=10.0)
    with pytest.raises(HandoffError, match="episode 0: label 'success'"):
        written(metadata=[{"success": "yes"}])
    with pytest.raises(HandoffError, match=r"units: q: deg is no SI unit.*0\.0174"):
        written(units={"q": "deg"})
    assert written(metadata=[{"success": True, "mine": "yes"}]).metadata(0)["mine"] == "yes"
