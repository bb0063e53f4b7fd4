import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest

from robots.episodes.config import FieldMapConfig
from robots.episodes.field_map import MappedEpisodes
from robots.episodes.formats.containers.tfrecords import (
    _masked,
    read_byte_lists,
    record_offsets,
)
from robots.episodes.formats.rlds import open_source, recognises
from robots.episodes.formats.source import SourceEpisode
from robots.errors import HandoffError
from robots.language.text import decode
from tests.robots.episodes.formats.mutations import check_mutations
from tests.robots.episodes.formats.rlds_files import (
    INSTRUCTIONS,
    LENGTHS,
    STEPS,
    episodes,
    group,
    image,
    record,
    tensor,
    write_rlds,
)

REPOSITORY = Path(__file__).parents[4]
BRIDGE = Path(os.environ.get("HANDOFF_DATA") or REPOSITORY / "../shared/data") / "bridge_rlds"


def read_all(path: Path, images: bool = True) -> list[SourceEpisode]:
    with open_source(path, images) as source:
        return list(source.episodes(0, source.num_episodes))


def read_error(path: Path) -> str:
    with pytest.raises(HandoffError) as caught:
        read_all(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("shards", [1, 2, 3])
def test_episodes_come_in_the_order_of_the_shards(tmp_path, shards, compressed):
    values = episodes()
    read = read_all(write_rlds(tmp_path / "d", values, shards=shards, compressed=compressed))
    assert [len(episode.arrays["action"]) for episode in read] == list(LENGTHS)
    for episode, given in zip(read, values, strict=True):
        np.testing.assert_array_equal(episode.arrays["action"], given["action"])
        np.testing.assert_array_equal(episode.arrays["observation/state"], given["state"])


def test_png_pictures_and_depth_are_bit_equal(tmp_path):
    values = episodes()
    read = read_all(write_rlds(tmp_path / "d", values))
    np.testing.assert_array_equal(read[1].arrays["observation/image"], values[1]["image"])
    np.testing.assert_array_equal(read[1].arrays["observation/depth"], values[1]["depth"])


def test_roles_units_and_types_follow_the_features(tmp_path):
    with open_source(write_rlds(tmp_path / "d", episodes()), True) as source:
        fields = source.schema.fields
        assert source.schema.rate_hz is None
        assert source.schema.task == "drawers"
        assert any("ragged" in note for note in source.schema.notes)
        assert any("is_last" in note for note in source.schema.notes)
    assert {name: spec.role for name, spec in fields.items()} == {
        "observation/state": "observation",
        "observation/image": "observation",
        "observation/depth": "observation",
        "action": "action",
        "action_dict/joint_velocity": "other",
        "reward": "outcome",
        "is_last": "outcome",
        "language_embedding": "other",
    }
    assert fields["observation/image"].unit == "u8"
    assert (fields["observation/depth"].unit, fields["observation/depth"].dtype) == ("mm", "uint16")
    assert fields["is_last"].dtype == "bool"


def test_the_instruction_and_the_outcome_are_metadata(tmp_path):
    read = read_all(write_rlds(tmp_path / "d", episodes()))
    assert [episode.metadata["instruction"] for episode in read] == list(INSTRUCTIONS)
    assert [episode.metadata["success"] for episode in read] == [True, False, True]
    assert [episode.metadata["episode_id"] for episode in read] == [10, 11, 12]
    assert read[0].metadata["split"] == "train"


def test_an_empty_instruction_before_the_first_word_is_passed_over(tmp_path):
    words = [["", *[text] * (n - 1)] for text, n in zip(INSTRUCTIONS, LENGTHS, strict=True)]
    read = read_all(write_rlds(tmp_path / "d", episodes(), words=words))
    assert read[2].metadata["instruction"] == INSTRUCTIONS[2]
    assert "instruction" not in read[2].arrays


def test_an_instruction_that_changes_becomes_a_text_field(tmp_path):
    words = [["go", "stop", *["go"] * (n - 2)] for n in LENGTHS]
    read = read_all(write_rlds(tmp_path / "d", episodes(), words=words))
    assert decode(read[0].arrays["instruction"]) == ("go", "stop", "go", "go")
    assert read[0].metadata["instructions"] == ["go", "stop"]


def test_an_instruction_that_changes_in_a_later_episode_only_is_kept_per_step(tmp_path):
    later = "then " * 120 + "stop"
    words = [[text] * n for text, n in zip(INSTRUCTIONS, LENGTHS, strict=True)]
    words[2][1] = later
    read = read_all(write_rlds(tmp_path / "d", episodes(), words=words, shards=2))
    assert set(decode(read[0].arrays["instruction"])) == {INSTRUCTIONS[0]}
    assert decode(read[2].arrays["instruction"]) == (INSTRUCTIONS[2], later, INSTRUCTIONS[2])


@pytest.mark.parametrize("compressed", [False, True])
def test_the_sentences_of_a_record_are_found_without_its_pictures(tmp_path, compressed):
    path = write_rlds(tmp_path / "d", episodes(), shards=1, compressed=compressed)
    file = next(path.glob("*.tfrecord*"))
    offsets = record_offsets(file)
    found = list(read_byte_lists(file, offsets, "steps/language_instruction"))
    assert [len(words) for words in found] == list(LENGTHS)
    assert [words[0].decode() for words in found] == list(INSTRUCTIONS)
    assert list(read_byte_lists(file, offsets, "steps/none")) == [[], [], []]


def test_images_are_left_out_on_request(tmp_path):
    path = write_rlds(tmp_path / "d", episodes())
    names = read_all(path, images=False)[0].arrays.keys()
    assert "observation/image" not in names
    assert "observation/depth" not in names


def test_reading_may_start_at_any_episode(tmp_path):
    values = episodes()
    with open_source(write_rlds(tmp_path / "d", values), True) as source:
        (episode,) = source.episodes(2, 3)
    np.testing.assert_array_equal(episode.arrays["action"], values[2]["action"])


def test_the_parts_of_an_action_are_named_and_none_is_taken(tmp_path):
    values = episodes()
    for episode in values:
        episode["world_vector"] = episode["action"][:, :3]
        episode["gripper"] = episode["action"][:, :1]
    parts = group(world_vector=tensor((3,), "float32"), gripper=tensor((1,), "float32"))
    path = write_rlds(tmp_path / "d", values, steps={**STEPS, "action": parts})
    with open_source(path, False) as source:
        assert {spec.role for spec in source.schema.fields.values()} >= {"observation", "other"}
        assert "action" not in {spec.role for spec in source.schema.fields.values()}
        assert any("action/gripper" in note for note in source.schema.notes)


def test_the_action_among_the_parts_of_an_action_is_the_main_one(tmp_path):
    values = episodes()
    for episode in values:
        episode["world_vector"] = episode["action"][:, :3]
        episode["action_part"] = episode["action"]
    parts = group(world_vector=tensor((3,), "float32"), action=tensor((7,), "float32"))
    path = write_rlds(tmp_path / "d", values, steps={**STEPS, "action": parts})
    with open_source(path, False) as source:
        mapped = MappedEpisodes(source, FieldMapConfig(rate_hz=5.0))
    fields = mapped.schema.stream("policy").fields
    assert fields["action"].role == "action"
    assert fields["action_parts/world_vector"].role == "other"


def test_the_format_is_recognised(tmp_path):
    path = write_rlds(tmp_path / "d", episodes())
    assert recognises(path)
    assert not recognises(tmp_path)
    assert not recognises(path / "features.json")


def test_missing_shards_are_noted(tmp_path):
    path = write_rlds(tmp_path / "d", episodes(), shards=3)
    (path / "drawers-train.tfrecord-00001-of-00003").unlink()
    with open_source(path, False) as source:
        assert source.num_episodes == 2
        assert "Of the split 'train', 2 of 3 shards are present." in source.schema.notes


@pytest.mark.parametrize("place", [0, 9, 40, 2000, -1, -3])
def test_a_flipped_bit_is_found_by_a_checksum(tmp_path, place):
    path = write_rlds(tmp_path / "d", episodes(), shards=1)
    file = next(path.glob("*.tfrecord*"))
    content = bytearray(file.read_bytes())
    content[place] ^= 4
    file.write_bytes(content)
    assert "checksum" in read_error(path)


@pytest.mark.parametrize("cut", [1, 5, 17, 300])
def test_a_shard_cut_short_is_refused(tmp_path, cut):
    path = write_rlds(tmp_path / "d", episodes(), shards=1)
    file = next(path.glob("*.tfrecord*"))
    file.write_bytes(file.read_bytes()[:-cut])
    assert "cut short" in read_error(path)


def test_whole_records_that_are_missing_are_noticed(tmp_path):
    path = write_rlds(tmp_path / "d", episodes()[:2], shards=1)
    info = json.loads((path / "dataset_info.json").read_text())
    info["splits"][0]["shardLengths"] = ["3"]
    (path / "dataset_info.json").write_text(json.dumps(info))
    assert "holds 2 episodes, dataset_info.json says 3" in read_error(path)


def test_a_feature_that_a_record_lacks_is_named(tmp_path):
    steps = {**STEPS, "force": tensor((3,), "float32")}
    path = write_rlds(tmp_path / "d", episodes(), steps=steps)
    assert "lacks steps/force" in read_error(path)


def test_numbers_that_do_not_fill_the_shape_are_refused(tmp_path):
    path = write_rlds(
        tmp_path / "d", episodes(), steps={**STEPS, "action": tensor((5,), "float32")}
    )
    assert "steps/action has 28 numbers, expected a multiple of 5" in read_error(path)


def test_features_of_unequal_length_are_refused(tmp_path):
    values = episodes()
    values[1]["reward"] = values[1]["reward"][:-1]
    assert "episode 1 has fields of the lengths" in read_error(write_rlds(tmp_path / "d", values))


def test_a_picture_of_another_size_is_refused(tmp_path):
    values = episodes()
    values[0]["image"] = values[0]["image"][:, :6]
    assert "features.json says uint8(12, 16, 3)" in read_error(write_rlds(tmp_path / "d", values))


def test_a_record_of_an_absurd_length_is_refused_before_it_is_read(tmp_path):
    path = write_rlds(tmp_path / "d", episodes(), shards=1)
    from crc32c import crc32c

    length = struct.pack("<Q", 2**40)
    head = length + struct.pack("<I", _masked(crc32c(length)))
    next(path.glob("*.tfrecord*")).write_bytes(head + bytes(100))
    assert "the limit is 1.1 GB" in read_error(path)


def test_a_shape_of_an_absurd_size_is_refused(tmp_path):
    wide = group(image=image((2**20, 2**20, 3), "uint8"))
    path = write_rlds(tmp_path / "d", episodes(), steps={**STEPS, "observation": wide})
    assert "the limit is 9 GB" in read_error(path)


def test_a_payload_that_is_no_example_is_refused(tmp_path):
    path = write_rlds(tmp_path / "d", episodes(), shards=1)
    next(path.glob("*.tfrecord*")).write_bytes(record(b"\xff" * 50) * 3)
    assert "is no tf.train.Example" in read_error(path)


def test_a_shard_that_is_a_link_to_another_place_is_refused(tmp_path):
    path = write_rlds(tmp_path / "d", episodes(), shards=1)
    file = next(path.glob("*.tfrecord*"))
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert "is a link" in read_error(path)


@pytest.mark.parametrize("compressed", [False, True])
def test_damaged_copies_are_read_or_refused_in_one_line(tmp_path, compressed):
    path = write_rlds(tmp_path / "d", episodes(), compressed=compressed)
    assert check_mutations(path, tmp_path / "scratch", open_source) >= 20


@pytest.mark.skipif(not BRIDGE.exists(), reason=f"Bridge is not at {BRIDGE}")
def test_the_bridge_data_has_25_episodes_of_10_steps():
    assert recognises(BRIDGE)
    read = read_all(BRIDGE)
    assert [len(episode.arrays["action"]) for episode in read] == [10] * 25
    assert read[0].arrays["observation/image_0"].shape == (10, 64, 64, 3)
    assert all(episode.metadata["instruction"] for episode in read)
