"""Merged stores: what must agree, what is dropped or padded, and where an episode comes from."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from robots.episodes.merge import MergeSource, merge_stores
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.language.text import encode, text_field
from robots.spec import FieldSpec

FIELDS = {
    "q": FieldSpec(shape=(2,), unit="rad"),
    "action": FieldSpec(shape=(1,)),
}
SCHEMA = EpisodeSchema(
    name="reach", streams={"policy": StreamSpec(rate_hz=20.0, fields=FIELDS)}, robot="fr3"
)


def with_fields(**fields: FieldSpec) -> EpisodeSchema:
    return replace(SCHEMA, streams={"policy": StreamSpec(rate_hz=20.0, fields=fields)})


def store(
    folder: Path, name: str, schema: EpisodeSchema = SCHEMA, successes: tuple = (True, True)
) -> MergeSource:
    """A store with one episode per entry of `successes`, of 2, 3, .. steps of its number."""
    path = folder / f"{name}.zarr"
    with EpisodeStore.create(path, schema) as made:
        for number, success in enumerate(successes):
            streams = {
                stream: {
                    field: np.full((number + 2, *declared.shape), number + 1, declared.dtype)
                    for field, declared in spec.fields.items()
                }
                for stream, spec in schema.streams.items()
            }
            metadata = {"seed": number, "source": name}
            made.append(streams, metadata if success is None else {**metadata, "success": success})
    return MergeSource(name, path, f"digest of {name}")


def test_episodes_of_all_stores_follow_one_another_with_their_origin(tmp_path: Path) -> None:
    sources = [store(tmp_path, "red"), store(tmp_path, "blue")]
    metrics = merge_stores(sources, tmp_path / "merged.zarr")
    assert metrics["episodes"] == 4
    assert metrics["frames"] == 2 + 3 + 2 + 3
    assert metrics["episodes_of"] == {"red": 2, "blue": 2}
    merged = EpisodeStore.open(tmp_path / "merged.zarr")
    assert merged.schema == SCHEMA
    assert merged.metadata(3) == {
        "seed": 1,
        "source": "blue",
        "success": True,
        "source_store": "blue",
        "source_digest": "digest of blue",
        "source_episode": 1,
    }
    np.testing.assert_array_equal(merged.read(3, "policy")["q"], np.full((3, 2), 2.0))


def test_a_second_merge_keeps_the_first_origin(tmp_path: Path) -> None:
    merge_stores([store(tmp_path, "red"), store(tmp_path, "blue")], tmp_path / "both.zarr")
    both = MergeSource("both", tmp_path / "both.zarr", "digest of both")
    merge_stores([both, store(tmp_path, "green")], tmp_path / "all.zarr")
    metadata = EpisodeStore.open(tmp_path / "all.zarr").metadata(2)
    assert (metadata["source_store"], metadata["source_episode"]) == ("both", 2)
    assert metadata["origin"] == {
        "source_store": "blue",
        "source_digest": "digest of blue",
        "source_episode": 0,
    }


def test_failures_are_left_out_and_episodes_counted_per_store(tmp_path: Path) -> None:
    sources = [
        store(tmp_path, "a", successes=(False, True, True, True)),
        store(tmp_path, "b", successes=(None, False)),
    ]
    metrics = merge_stores(sources, tmp_path / "m.zarr", successes=True, episodes_each=2)
    assert metrics["episodes_of"] == {"a": 2, "b": 1}
    merged = EpisodeStore.open(tmp_path / "m.zarr")
    taken = [merged.metadata(i)["source_episode"] for i in range(3)]
    assert taken == [1, 2, 0]


def test_fields_that_a_store_lacks_are_named_dropped_or_padded(tmp_path: Path) -> None:
    richer = with_fields(**FIELDS, cube=FieldSpec(shape=(3,), unit="m"))
    sources = [store(tmp_path, "plain"), store(tmp_path, "cubes", richer)]
    with pytest.raises(HandoffError, match=r"plain lacks cube\. Set missing: drop"):
        merge_stores(sources, tmp_path / "m.zarr")
    assert not (tmp_path / "m.zarr").exists()
    dropped = merge_stores(sources, tmp_path / "dropped.zarr", missing="drop")
    assert dropped["dropped"] == ["policy/cube"]
    assert EpisodeStore.open(tmp_path / "dropped.zarr").schema == SCHEMA
    padded = merge_stores(sources, tmp_path / "padded.zarr", missing="pad")
    assert padded["padded"] == {"plain": ["policy/cube"], "cubes": []}
    merged = EpisodeStore.open(tmp_path / "padded.zarr")
    assert not merged.read(0, "policy")["cube"].any()
    assert (merged.read(2, "policy")["cube"] == 1.0).all()


def test_a_stream_of_one_store_alone_is_refused_or_dropped(tmp_path: Path) -> None:
    final = replace(
        SCHEMA, streams={**SCHEMA.streams, "final": StreamSpec(rate_hz=20.0, fields=FIELDS)}
    )
    sources = [store(tmp_path, "plain"), store(tmp_path, "final", final)]
    with pytest.raises(HandoffError, match="differ: plain has policy; final has final, policy"):
        merge_stores(sources, tmp_path / "m.zarr", missing="pad")
    merge_stores(sources, tmp_path / "m.zarr", missing="drop")
    assert list(EpisodeStore.open(tmp_path / "m.zarr").schema.streams) == ["policy"]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (replace(SCHEMA, name="lift"), "tasks lift, reach"),
        (replace(SCHEMA, robot="panda"), "robots fr3, panda"),
        (with_fields(**{**FIELDS, "action": FieldSpec(shape=(2,))}), "action of b has the shape"),
        (with_fields(**{**FIELDS, "q": FieldSpec(shape=(2,), unit="deg")}), "unit 'deg'"),
        (
            replace(SCHEMA, streams={"policy": StreamSpec(rate_hz=10.0, fields=FIELDS)}),
            "rates of policy differ: 20 Hz in a, 10 Hz in b",
        ),
    ],
)
def test_stores_that_do_not_agree_are_refused(
    other: EpisodeSchema, message: str, tmp_path: Path
) -> None:
    with pytest.raises(HandoffError, match=message):
        merge_stores([store(tmp_path, "a"), store(tmp_path, "b", other)], tmp_path / "m.zarr")


def test_tasks_of_other_names_merge_under_a_given_name(tmp_path: Path) -> None:
    sources = [store(tmp_path, "a"), store(tmp_path, "b", replace(SCHEMA, name="lift"))]
    merge_stores(sources, tmp_path / "m.zarr", task="both")
    merged = EpisodeStore.open(tmp_path / "m.zarr")
    assert merged.schema.name == "both"
    # Each is told what its own store would have told a policy.
    assert [merged.metadata(number)["instruction"] for number in range(4)] == [
        "reach",
        "reach",
        "lift",
        "lift",
    ]


def test_recorded_words_stay_with_their_episodes(tmp_path: Path) -> None:
    spoken = replace(with_fields(**FIELDS, instruction=text_field(16)), name="lift_cube")
    with EpisodeStore.create(tmp_path / "spoken.zarr", spoken) as made:
        words = encode(["", "lift it", "lift it"], 16)
        steps = {"q": np.ones((3, 2)), "action": np.ones((3, 1)), "instruction": words}
        made.append({"policy": steps}, {})
        made.append({"policy": {**steps, "instruction": np.zeros_like(words)}}, {})
        made.append({"policy": steps}, {"instruction": "up"})
    sources = [store(tmp_path, "a"), MergeSource("b", tmp_path / "spoken.zarr", "")]
    merge_stores(sources, tmp_path / "m.zarr", task="both", missing="drop")
    merged = EpisodeStore.open(tmp_path / "m.zarr")
    assert "instruction" not in merged.schema.streams["policy"].fields
    assert [merged.metadata(number)["instruction"] for number in range(5)] == [
        "reach",
        "reach",
        "lift it",
        "lift cube",
        "up",
    ]
    # Stores of one task say nothing that they did not say before.
    merge_stores(sources[:1], tmp_path / "one.zarr")
    assert "instruction" not in EpisodeStore.open(tmp_path / "one.zarr").metadata(0)


def test_stores_may_disagree_about_fields_that_are_left_out(tmp_path: Path) -> None:
    first = with_fields(**FIELDS, goal=FieldSpec(shape=(3,)), other=FieldSpec(shape=(1,)))
    sources = [
        store(tmp_path, "a", first),
        store(tmp_path, "b", with_fields(**FIELDS, goal=FieldSpec(shape=(1,)))),
    ]
    with pytest.raises(
        HandoffError, match=r"policy/goal of b has the shape .* Leave it out: fields\."
    ):
        merge_stores(sources, tmp_path / "m.zarr", missing="drop")
    metrics = merge_stores(sources, tmp_path / "m.zarr", fields=["action", "q"])
    merged = EpisodeStore.open(tmp_path / "m.zarr")
    assert merged.schema.streams["policy"].fields == FIELDS
    assert metrics["dropped"] == ["policy/goal", "policy/other"]
    assert merged.read(2, "policy", ["q"])["q"].tolist() == [[1.0, 1.0]] * 2
    with pytest.raises(HandoffError, match="no store has the field 'acton', did you mean 'action'"):
        merge_stores(sources, tmp_path / "m.zarr", fields=["acton"])
    # A kept field that only one store has is treated as any other.
    with pytest.raises(HandoffError, match="b lacks other"):
        merge_stores(sources, tmp_path / "m.zarr", fields=["q", "other"])


def test_a_store_without_success_and_stores_of_one_name_are_refused(tmp_path: Path) -> None:
    failed = store(tmp_path, "failed", successes=(False, False))
    with pytest.raises(HandoffError, match=r"2 episodes, all failed, .*successes: false"):
        merge_stores([failed], tmp_path / "m.zarr", successes=True)
    with pytest.raises(HandoffError, match="one or more distinct"):
        merge_stores([failed, failed], tmp_path / "m.zarr")


def test_episodes_that_are_merged_twice_are_a_warning(tmp_path: Path) -> None:
    first, copy = store(tmp_path, "first"), store(tmp_path, "copy", successes=(True,))
    warning = merge_stores([first, copy], tmp_path / "m.zarr")["warning"]
    assert warning.startswith("1 episode is the same as an earlier one: 2 as 0.")


def test_episodes_that_differ_in_one_sample_are_no_warning(tmp_path: Path) -> None:
    first = store(tmp_path, "first")
    with EpisodeStore.create(tmp_path / "other.zarr", SCHEMA) as other:
        q = np.ones((2, 2), np.float32)
        q[1, 1] = 1.5
        other.append({"policy": {"q": q, "action": np.ones((2, 1), np.float32)}}, {})
    source = MergeSource("other", tmp_path / "other.zarr", "")
    assert "warning" not in merge_stores([first, source], tmp_path / "m.zarr")
