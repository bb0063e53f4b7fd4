from pathlib import Path

import numpy as np
import pytest

from robots.episodes.curation.edit import Edits, write_edited
from robots.episodes.metadata.labels import parse_labels
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.language.text import decode, encode, text_field
from robots.spec import FieldSpec

LENGTHS = (6, 8, 5)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    q = FieldSpec(shape=(1,))
    schema = EpisodeSchema(
        name="t",
        streams={
            "policy": StreamSpec(rate_hz=10.0, fields={"q": q, "action": q}),
            "robot": StreamSpec(rate_hz=40.0, fields={"tau": q}),
            "final": StreamSpec(rate_hz=10.0, fields={"q": q}),
        },
    )
    with EpisodeStore.create(tmp_path / "s.zarr", schema) as store:
        for number, length in enumerate(LENGTHS):
            steps = np.arange(length, dtype=np.float32)[:, None] + 100 * number
            states = np.arange(4 * length, dtype=np.float32)[:, None]
            store.append(
                {
                    "policy": {"q": steps, "action": -steps},
                    "robot": {"tau": states},
                    "final": {"q": steps[-1:] + 1},
                },
                {"success": True, "seed": number},
            )
    return tmp_path / "s.zarr"


def test_deleted_episodes_are_missing_and_the_others_name_their_source(
    source: Path, tmp_path: Path
) -> None:
    figures = write_edited(source, tmp_path / "o.zarr", Edits(delete=(1,)), digest="abc")
    assert figures["episodes"] == 2
    store = EpisodeStore.open(tmp_path / "o.zarr")
    assert store.read(1, "policy", ["q"])["q"][0, 0] == 200.0
    assert store.metadata(1) == {
        "success": True,
        "seed": 2,
        "source_store": "s.zarr",
        "source_digest": "abc",
        "source_episode": 2,
        "edits": [{"done": ["deleted episode 1 of s.zarr"], "by": "", "reason": ""}],
    }
    assert EpisodeStore.open(source).num_episodes == 3


def test_a_deletion_and_its_reason_are_recorded_by_the_episodes_that_stay(
    source: Path, tmp_path: Path
) -> None:
    edits = Edits(delete=(0, 1), by="ada", reason="covered", when="2026-11-27T03:01:10.500Z")
    write_edited(source, tmp_path / "o.zarr", edits)
    assert EpisodeStore.open(tmp_path / "o.zarr").metadata(0)["edits"] == [
        {
            "done": ["deleted episodes 0 to 1 of s.zarr"],
            "by": "ada",
            "reason": "covered",
            "when": "2026-11-27T03:01:10.500Z",
        }
    ]


def test_a_label_of_ones_own_is_accepted_where_it_is_said_to_be_new(
    source: Path, tmp_path: Path
) -> None:
    edits = Edits(labels={0: {"quality": 3}}, new_labels=True)
    write_edited(source, tmp_path / "o.zarr", edits)
    assert EpisodeStore.open(tmp_path / "o.zarr").metadata(0)["quality"] == 3


def test_a_trimmed_episode_is_cut_in_all_streams_and_ends_with_the_next_observation(
    source: Path, tmp_path: Path
) -> None:
    edits = Edits(trim={1: (2, 6)}, by="ada", reason="idle at the start")
    write_edited(source, tmp_path / "o.zarr", edits)
    store = EpisodeStore.open(tmp_path / "o.zarr")
    assert store.read(1, "policy")["q"][:, 0].tolist() == [102, 103, 104, 105]
    assert store.read(1, "robot")["tau"][:, 0].tolist() == list(range(8, 24))
    assert store.read(1, "final")["q"][:, 0].tolist() == [106]
    assert store.metadata(1)["edits"] == [
        {"done": ["steps [2, 6)"], "by": "ada", "reason": "idle at the start"}
    ]
    assert store.read(0, "policy")["q"][:, 0].tolist() == list(range(6))


def test_the_last_observation_stays_where_the_end_is_kept(source: Path, tmp_path: Path) -> None:
    write_edited(source, tmp_path / "o.zarr", Edits(trim={0: (3, 6)}))
    assert EpisodeStore.open(tmp_path / "o.zarr").read(0, "final")["q"][:, 0].tolist() == [6]


def test_labels_are_replaced_added_and_removed_with_a_line_each(
    source: Path, tmp_path: Path
) -> None:
    labels = parse_labels(["success=false", "instruction=fold it", "seed=null"])
    write_edited(source, tmp_path / "o.zarr", Edits(labels={2: dict(labels)}))
    metadata = EpisodeStore.open(tmp_path / "o.zarr").metadata(2)
    assert (metadata["success"], metadata["instruction"]) == (False, "fold it")
    assert "seed" not in metadata
    assert metadata["edits"][0]["done"] == [
        "success: true to false",
        'instruction: none to "fold it"',
        "seed: 2 to none",
    ]


def test_a_new_instruction_is_also_that_of_every_step(tmp_path: Path) -> None:
    fields = {"action": FieldSpec(shape=(1,)), "instruction": text_field(16)}
    streams = {"policy": StreamSpec(rate_hz=10.0, fields=fields)}
    with EpisodeStore.create(
        tmp_path / "s.zarr", EpisodeSchema(name="t", streams=streams)
    ) as store:
        for _ in range(2):
            words = encode(["go", "stop", "go"], 16)
            store.append(
                {"policy": {"action": np.zeros((3, 1), np.float32), "instruction": words}}, {}
            )
    write_edited(
        tmp_path / "s.zarr", tmp_path / "o.zarr", Edits(labels={1: {"instruction": "fold"}})
    )
    edited = EpisodeStore.open(tmp_path / "o.zarr")
    assert decode(edited.read(0, "policy")["instruction"]) == ("go", "stop", "go")
    assert decode(edited.read(1, "policy")["instruction"]) == ("fold",) * 3
    assert edited.metadata(1)["instruction"] == "fold"


def test_a_second_edit_adds_its_line_and_keeps_the_first_source(
    source: Path, tmp_path: Path
) -> None:
    write_edited(source, tmp_path / "a.zarr", Edits(labels={0: {"success": False}}), digest="one")
    write_edited(
        tmp_path / "a.zarr", tmp_path / "b.zarr", Edits(labels={0: {"success": True}}), digest="two"
    )
    metadata = EpisodeStore.open(tmp_path / "b.zarr").metadata(0)
    assert [entry["done"] for entry in metadata["edits"]] == [
        ["success: true to false"],
        ["success: false to true"],
    ]
    assert metadata["origin"]["source_digest"] == "one"


def test_edits_of_several_people_are_one_copy_with_a_line_for_each(
    source: Path, tmp_path: Path
) -> None:
    figures = write_edited(
        source,
        tmp_path / "o.zarr",
        Edits(delete=(2,), by="ada", reason="covered"),
        Edits(labels={0: {"success": False}}, by="eve", when="2026-11-27T03:01:10.500Z"),
        Edits(trim={0: (1, 4)}, by="bob", reason="idle"),
    )
    assert (figures["deleted"], figures["trimmed"], figures["relabelled"]) == ([2], [0], [0])
    store = EpisodeStore.open(tmp_path / "o.zarr")
    deleted = {"done": ["deleted episode 2 of s.zarr"], "by": "ada", "reason": "covered"}
    assert store.metadata(0)["edits"] == [
        deleted,
        {
            "done": ["success: true to false"],
            "by": "eve",
            "reason": "",
            "when": "2026-11-27T03:01:10.500Z",
        },
        {"done": ["steps [1, 4)"], "by": "bob", "reason": "idle"},
    ]
    assert store.metadata(1)["edits"] == [deleted]
    assert store.read(0, "policy")["q"][:, 0].tolist() == [1, 2, 3]


def test_an_episode_is_shortened_once_per_copy(source: Path, tmp_path: Path) -> None:
    with pytest.raises(HandoffError, match="episode 0 is shortened twice"):
        write_edited(source, tmp_path / "o.zarr", Edits(trim={0: (0, 4)}), Edits(trim={0: (1, 5)}))


def test_a_killed_edit_leaves_no_store_with_some_of_the_episodes(
    source: Path, tmp_path: Path
) -> None:
    def killed(done: int, total: int, note: str = "") -> None:
        present.append((tmp_path / "o.zarr").exists())
        raise KeyboardInterrupt

    present: list[bool] = []
    with pytest.raises(KeyboardInterrupt):
        write_edited(source, tmp_path / "o.zarr", Edits(delete=(0,)), progress=killed)
    assert present == [False], "as a kill at this moment would have left it"
    assert [path.name for path in tmp_path.iterdir()] == ["s.zarr"]


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        (Edits(), "nothing to change"),
        (Edits(delete=(3,)), "no episode 3, the store has 0 to 2"),
        (Edits(delete=(0, 1, 2)), "all 3 episodes would be deleted"),
        (Edits(trim={0: (4, 7)}), r"steps \[4, 7\) of episode 0, which has 6 steps"),
        (Edits(trim={0: (4, 2)}), "from 4 to before 2, of which there is none"),
        (
            Edits(labels={0: {"sucess": False}}),
            "label 'sucess': is unknown; did you mean 'success'",
        ),
        (Edits(labels={0: {"seed": "abc"}}), "the episodes of the store state a number"),
    ],
)
def test_edits_that_do_not_fit_write_nothing(
    source: Path, tmp_path: Path, edits: Edits, message: str
) -> None:
    with pytest.raises(HandoffError, match=message):
        write_edited(source, tmp_path / "o.zarr", edits)
    assert not (tmp_path / "o.zarr").exists()


def test_an_existing_folder_is_never_replaced(source: Path, tmp_path: Path) -> None:
    with pytest.raises(HandoffError, match="already exists"):
        write_edited(source, source, Edits(delete=(0,)))
