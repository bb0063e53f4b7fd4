from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robots.episodes.curation.choose import FilterConfig, SplitConfig, filtered, split
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.spec import FieldSpec

EPISODES: list[tuple[int, int, dict[str, Any]]] = [
    (4, 0, {"success": True, "operator": "ada", "instruction": "pick up the cube", "quality": 5}),
    (9, 1, {"success": False, "operator": "bob", "instruction": "pick up the can", "quality": 2}),
    (6, 0, {"success": True, "operator": "ada", "instruction": "open the drawer"}),
    (20, 1, {"success": True, "operator": "eve", "instruction": "pick up the cube", "quality": 3}),
]
"""Steps, whether a person took over, metadata."""


@pytest.fixture
def store(tmp_path: Path) -> EpisodeStore:
    fields = {"q": FieldSpec(shape=(2,)), "intervention": FieldSpec(shape=(), dtype="uint8")}
    schema = EpisodeSchema(name="t", streams={"policy": StreamSpec(rate_hz=10.0, fields=fields)})
    with EpisodeStore.create(tmp_path / "s.zarr", schema) as created:
        for steps, acted, metadata in EPISODES:
            intervention = np.zeros(steps, np.uint8)
            intervention[-1] = acted
            arrays = {"q": np.zeros((steps, 2), np.float32), "intervention": intervention}
            created.append({"policy": arrays}, metadata)
    return EpisodeStore.open(tmp_path / "s.zarr")


@pytest.mark.parametrize(
    ("conditions", "kept"),
    [
        ({}, [0, 1, 2, 3]),
        ({"success": True}, [0, 2, 3]),
        ({"success": False}, [1]),
        ({"min_steps": 6, "max_steps": 9}, [1, 2]),
        ({"operators": ("ada", "e*")}, [0, 2, 3]),
        ({"instructions": ("pick up *",)}, [0, 1, 3]),
        ({"corrections": "with"}, [1, 3]),
        ({"corrections": "without"}, [0, 2]),
        ({"ranges": {"quality": (3, 5)}}, [0, 3]),
        ({"exclude": (0, 3)}, [1, 2]),
        ({"success": True, "corrections": "without", "exclude": (0,)}, [2]),
    ],
)
def test_an_episode_is_kept_if_it_meets_every_condition(
    store: EpisodeStore, conditions: dict[str, Any], kept: list[int]
) -> None:
    assert filtered(store, FilterConfig(**conditions))[0] == kept


def test_every_condition_tells_how_many_episodes_it_left_out(store: EpisodeStore) -> None:
    conditions = FilterConfig(success=True, min_steps=5)
    assert filtered(store, conditions)[1] == {"success": 1, "min_steps": 1}


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        (
            {"min_steps": 100},
            "none of 4 episodes meets all conditions; left out by min_steps \\(4\\)",
        ),
        ({"ranges": {"qualty": (0, 1)}}, "no episode states 'qualty'; did you mean 'quality'"),
        ({"exclude": (4,)}, "no episode 4, the store has 0 to 3"),
    ],
)
def test_conditions_that_leave_nothing_or_ask_for_nothing_known_are_refused(
    store: EpisodeStore, conditions: dict[str, Any], message: str
) -> None:
    with pytest.raises(HandoffError, match=message):
        filtered(store, FilterConfig(**conditions))


def test_the_two_parts_of_a_split_have_every_episode_once() -> None:
    metadata: list[dict[str, Any]] = [{} for _ in range(25)]
    parts = [
        split(metadata, SplitConfig(part=part, fraction=0.1, seed=3))
        for part in ("train", "held_out")
    ]
    assert [len(part) for part in parts] == [22, 3]
    assert sorted(parts[0] + parts[1]) == list(range(25))
    assert split(metadata, SplitConfig(part="held_out", seed=4)) != parts[1]


def test_episodes_of_one_group_stay_together() -> None:
    metadata = [{"session": number // 5} for number in range(20)]
    held_out = split(metadata, SplitConfig(part="held_out", fraction=0.5, group="session"))
    groups = {number // 5 for number in held_out}
    assert len(groups) == 2
    assert held_out == [number for number in range(20) if number // 5 in groups]


def test_parts_that_the_data_set_states_are_taken_by_name() -> None:
    metadata = [{"split": ["train"]}, {"split": ["valid", "20_percent"]}, {}, {"split": ["train"]}]
    assert split(metadata, SplitConfig(names=("train",))) == [0, 3]
    with pytest.raises(
        HandoffError, match="no episode is in the part 'vald'; did you mean 'valid'"
    ):
        split(metadata, SplitConfig(names=("vald",)))


def test_one_episode_cannot_be_split() -> None:
    with pytest.raises(
        HandoffError, match="1 episode, at least 2 needed: one to train, one held out"
    ):
        split([{}], SplitConfig())
    with pytest.raises(HandoffError, match="episode 1 does not state 'session'"):
        split([{"session": 1}, {}], SplitConfig(group="session"))
