"""Episodes with corrections: what is stored per step, what of the last step, and what a crash
loses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal, cast

import numpy as np
import pytest

from robots.episodes.corrections import (
    EpisodeAssembler,
    StepOutcome,
    corrections_schema,
    open_corrections,
)
from robots.episodes.exports.lerobot import write_lerobot
from robots.episodes.formats.lerobot import open_source
from robots.episodes.metadata.capture_times import capture_time_field
from robots.episodes.running_episode import RunningEpisode
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import Intervention, Reason
from robots.spec import ActionSpec, FieldSpec
from robots.wire.steps import GUIDE_VERSION

ACTIONS = ActionSpec(
    low=(-1.0,) * 2, high=(1.0,) * 2, names=("x", "gripper"), interface="cartesian_delta"
)
SCHEMA = corrections_schema("reach", 20.0, {"pose": FieldSpec(shape=(2,), unit="m")}, ACTIONS)


def step(t: int, num_envs: int = 1, *, last: bool = False, person: bool = False) -> tuple:
    pose = np.full((num_envs, 2), float(t))
    held = np.full(num_envs, person)
    event = Intervention(
        proposed=np.full((num_envs, 2), 0.5),
        executed=np.full((num_envs, 2), -0.5 if person else 0.5),
        intervening=held,
        segment=np.where(held, 0, -1),
        reason=np.where(held, int(Reason.PERSON), 0),
        operator="ada",
        device="keyboard",
    )
    outcome = StepOutcome(
        reward=np.full(num_envs, float(last)),
        success=np.full(num_envs, int(last)),
        final_observation={"pose": pose + 1.0},
        last=np.full(num_envs, last),
        policy_version=np.full(num_envs, 7),
    )
    return {"pose": pose}, event, outcome


def test_both_actions_the_person_and_the_reason_are_stored(tmp_path: Path) -> None:
    with open_corrections(tmp_path / "store.zarr", SCHEMA) as store:
        assembler = EpisodeAssembler(store, 1, {"robot": "fr3"})
        for t in range(4):
            assembler.add(
                *step(t, last=t == 3, person=t == 2), moved=np.array([True]), about=[{"seed": 9}]
            )
    store = EpisodeStore.open(tmp_path / "store.zarr")
    rows = store.read(0, "policy")
    assert rows["action"][:, 0].tolist() == [0.5, 0.5, -0.5, 0.5]
    assert rows["action_policy"][:, 0].tolist() == [0.5] * 4
    assert rows["intervention"].tolist() == [0, 0, 1, 0]
    assert rows["segment"].tolist() == [-1, -1, 0, -1]
    assert rows["reason"].tolist() == [0, 0, int(Reason.PERSON), 0]
    assert rows["success"].tolist() == [0, 0, 0, 1]
    assert rows["policy_version"].tolist() == [7] * 4
    assert store.read(0, "final")["pose"].tolist() == [[4.0, 4.0]], "the state of success itself"
    about = store.metadata(0)
    assert (about["operator"], about["device"], about["robot"], about["seed"]) == (
        "ada",
        "keyboard",
        "fr3",
        9,
    )
    assert (about["success"], about["interventions"], about["takeovers"]) == (True, 0.25, 1)
    assert about["discard_reason"] is None


def test_the_person_of_every_step_is_one_of_the_people_of_the_episode(tmp_path: Path) -> None:
    with open_corrections(tmp_path / "store.zarr", SCHEMA) as store:
        assembler = EpisodeAssembler(store, 1, {})
        for t, (name, acts) in enumerate(
            (("ada", False), ("ada", True), ("ben", True), ("ben", False), ("ada", True))
        ):
            observation, event, outcome = step(t, last=t == 4, person=acts)
            event = event._replace(operator=name)
            assembler.add(observation, event, outcome, moved=np.array([True]), about=[{}])
        assert store.read(0, "policy")["person"].tolist() == [-1, 0, 1, -1, 0]
        assert store.metadata(0)["people"] == [
            {"name": "ada", "device": "keyboard"},
            {"name": "ben", "device": "keyboard"},
        ]


def test_the_versions_of_the_policy_are_those_that_proposed(tmp_path: Path) -> None:
    with open_corrections(tmp_path / "store.zarr", SCHEMA) as store:
        assembler = EpisodeAssembler(store, 1, {})
        for t, version in enumerate((4, -1, 6)):
            observation, event, outcome = step(t, last=t == 2)
            outcome = outcome._replace(policy_version=np.array([version]))
            assembler.add(observation, event, outcome, moved=np.array([True]), about=[{}])
        assert store.metadata(0)["policy_versions"] == [4, 6]


def test_wall_times_are_those_of_the_first_step_and_of_the_commit(tmp_path: Path) -> None:
    times = iter(["10:00", "10:01", "10:02", "10:03"])
    with open_corrections(tmp_path / "store.zarr", SCHEMA) as store:
        assembler = EpisodeAssembler(store, 1, {}, now=lambda: next(times))
        for _ in range(2):
            for t in range(3):
                assembler.add(*step(t, last=t == 2), moved=np.array([True]), about=[{}])
        about = [store.metadata(episode) for episode in range(2)]
    assert [(entries["began"], entries["ended"]) for entries in about] == [
        ("10:00", "10:01"),
        ("10:02", "10:03"),
    ]


def test_a_killed_recording_states_when_it_began_and_who_was_there(tmp_path: Path) -> None:
    with open_corrections(tmp_path / "store.zarr", SCHEMA) as store:
        assembler = EpisodeAssembler(store, 1, {"robot": "fr3"}, now=lambda: "10:00")
        assembler.add(*step(0), moved=np.array([True]), about=[{}])
        assembler.add(*step(1), moved=np.array([True]), about=[{}])
        running = assembler._running[0]
        assert running is not None
        metadata = cast(RunningEpisode, running.recording)._files.metadata
        assembler.drop()
    assert metadata == {
        "robot": "fr3",
        "began": "10:00",
        "people": [{"name": "ada", "device": "keyboard"}],
    }


def test_a_store_from_before_people_and_capture_times_is_continued(tmp_path: Path) -> None:
    pictures = {
        "image": FieldSpec(shape=(4, 4, 3), dtype="uint8", unit="u8"),
        "image_time": capture_time_field("image"),
    }
    schema = corrections_schema(
        "reach", 20.0, {"pose": FieldSpec(shape=(2,), unit="m"), **pictures}, ACTIONS
    )
    older = replace(
        schema,
        streams={
            name: replace(
                stream,
                fields={
                    field: spec
                    for field, spec in stream.fields.items()
                    if field not in ("person", "image_time")
                },
            )
            for name, stream in schema.streams.items()
        },
    )
    EpisodeStore.create(tmp_path / "store.zarr", older).close()
    picture = {"image": np.zeros((1, 4, 4, 3), np.uint8), "image_time": np.zeros(1)}
    with open_corrections(tmp_path / "store.zarr", schema) as store:
        observation, event, outcome = step(0, last=True)
        final = {**outcome.final_observation, **picture}
        outcome = outcome._replace(final_observation=final)
        assembler = EpisodeAssembler(store, 1, {})
        assembler.add(
            {**observation, **picture}, event, outcome, moved=np.array([True]), about=[{}]
        )
        assert store.num_episodes == 1
        assert "image_time" not in store.read(0, "final")
    without_reward = {
        name: spec for name, spec in older.streams["policy"].fields.items() if name != "reward"
    }
    streams = {**older.streams, "policy": replace(older.streams["policy"], fields=without_reward)}
    EpisodeStore.create(tmp_path / "other.zarr", replace(older, streams=streams)).close()
    with pytest.raises(HandoffError, match="task changed"):
        open_corrections(tmp_path / "other.zarr", schema)


def test_why_an_episode_was_dropped_stands_in_its_metadata(tmp_path: Path) -> None:
    with open_corrections(tmp_path / "store.zarr", SCHEMA) as store:
        EpisodeAssembler(store, 1, {}).add(
            *step(0, last=True), moved=np.array([True]), about=[{"discard_reason": "redo"}]
        )
        assert store.metadata(0)["discard_reason"] == "redo"


def test_an_episode_that_is_cut_off_is_kept_as_far_as_it_went(tmp_path: Path) -> None:
    with open_corrections(tmp_path / "store.zarr", SCHEMA) as store:
        assembler = EpisodeAssembler(store, 2, {"robot": "fr3"})
        steps = [step(t, 2) for t in range(3)]
        for each in steps:
            assembler.add(*each, moved=np.array([True, True]), about=[{}, {}])
        assembler.cut_off(
            1, steps[-1][2].final_observation, {"fault": "lost", "discard_reason": "fault"}
        )
        assert store.read(0, "policy")["success"].tolist() == [0, 0, 0]
        assert store.read(0, "final")["pose"].tolist() == [[3.0, 3.0]]
        about = store.metadata(0)
        assert (about["fault"], about["discard_reason"], about["success"]) == (
            "lost",
            "fault",
            False,
        )
        assert about["robot"] == "fr3"


def test_only_finished_episodes_are_committed_and_a_new_session_goes_on(tmp_path: Path) -> None:
    for session in range(2):
        with open_corrections(tmp_path / "store.zarr", SCHEMA) as store:
            assembler = EpisodeAssembler(store, 1, {})
            for t, last in enumerate((False, True, False)):
                assembler.add(*step(t, last=last), moved=np.array([True]), about=[{}])
            assert store.num_episodes == session + 1
            assert store.ends("policy")[-1] == 2 * (session + 1)


def test_environments_that_did_not_move_add_no_step(tmp_path: Path) -> None:
    with open_corrections(tmp_path / "store.zarr", SCHEMA) as store:
        assembler = EpisodeAssembler(store, 2, {})
        assembler.add(*step(0, 2), moved=np.array([True, False]), about=[{}, {}])
        assert (
            assembler.add(*step(1, 2, last=True), moved=np.array([True, True]), about=[{}, {}]) == 2
        )
        assert store.ends("policy").tolist() == [2, 3]


def test_frames_are_copies_of_what_the_environments_write_again(tmp_path: Path) -> None:
    with open_corrections(tmp_path / "store.zarr", SCHEMA) as store:
        assembler = EpisodeAssembler(store, 1, {})
        observation, event, outcome = step(0)
        assembler.add(observation, event, outcome, moved=np.array([True]), about=[{}])
        observation["pose"][:] = 99.0
        assembler.add(*step(1, last=True), moved=np.array([True]), about=[{}])
        assert store.read(0, "policy")["pose"][0].tolist() == [0.0, 0.0]


def test_another_schema_is_refused(tmp_path: Path) -> None:
    open_corrections(tmp_path / "store.zarr", SCHEMA).close()
    other = corrections_schema("reach", 20.0, {"pose": FieldSpec(shape=(3,))}, ACTIONS)
    with pytest.raises(HandoffError, match="task changed"):
        open_corrections(tmp_path / "store.zarr", other)


def test_store_of_another_robot_is_refused(tmp_path: Path) -> None:
    open_corrections(tmp_path / "store.zarr", replace(SCHEMA, robot="fr3")).close()
    open_corrections(tmp_path / "store.zarr", replace(SCHEMA, robot="fr3")).close()
    with pytest.raises(HandoffError, match=r"holds episodes of the robot 'fr3', .* has 'panda'"):
        open_corrections(tmp_path / "store.zarr", replace(SCHEMA, robot="panda"))


def test_store_from_before_robots_were_stated_is_continued(tmp_path: Path) -> None:
    open_corrections(tmp_path / "store.zarr", SCHEMA).close()
    with open_corrections(tmp_path / "store.zarr", replace(SCHEMA, robot="fr3")) as store:
        assert store.schema.robot == ""


def test_an_observation_that_takes_a_name_of_the_schema_is_refused() -> None:
    with pytest.raises(HandoffError, match="reward"):
        corrections_schema("reach", 20.0, {"reward": FieldSpec(shape=())}, ACTIONS)


def roles(rows: dict[str, np.ndarray]) -> list[str]:
    """Who acted at every step, as `docs/concepts/episodes.md` has it."""
    columns = (rows[name].ravel() for name in ("intervention", "policy_version"))
    return [
        "person" if acted else "guide" if version == GUIDE_VERSION else "policy"
        for acted, version in zip(*columns, strict=True)
    ]


@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
def test_every_step_of_a_whole_attempt_keeps_its_role_through_an_export(
    tmp_path: Path, version: Literal["v3.0", "v2.1"]
) -> None:
    acted = ["guide", "guide", "policy", "person", "person", "policy"]
    with open_corrections(tmp_path / "store.zarr", SCHEMA) as store:
        assembler = EpisodeAssembler(store, 1, {})
        for t, role in enumerate(acted):
            observation, event, outcome = step(t, last=t == 5, person=role == "person")
            number = GUIDE_VERSION if role == "guide" else 7
            outcome = outcome._replace(policy_version=np.array([number]))
            assembler.add(observation, event, outcome, moved=np.array([True]), about=[{}])
        assert roles(store.read(0, "policy")) == acted
        assert store.metadata(0)["policy_versions"] == [7, 7], "a guide has no version"
        write_lerobot(store, tmp_path / "exported", version=version)
    with open_source(tmp_path / "exported", False) as source:
        (episode,) = source.episodes(0, 1)
    assert roles(dict(episode.arrays)) == acted
    assert episode.arrays["person"].ravel().tolist() == [-1, -1, -1, 0, 0, -1]
    assert episode.metadata["people"] == [{"name": "ada", "device": "keyboard"}]


def test_further_fields_are_stored_and_may_not_be_observed(tmp_path: Path) -> None:
    further = {"hint": FieldSpec(shape=(), dtype="uint8", role="other")}
    pose = {"pose": FieldSpec(shape=(2,), unit="m")}
    schema = corrections_schema("reach", 20.0, pose, ACTIONS, further=further)
    with open_corrections(tmp_path / "store.zarr", schema) as store:
        assembler = EpisodeAssembler(store, 1, {})
        for t in range(3):
            assembler.add(
                *step(t, last=t == 2),
                moved=np.array([True]),
                about=[{}],
                further={"hint": np.array([t])},
            )
        assert store.read(0, "policy")["hint"].ravel().tolist() == [0, 1, 2]
    with pytest.raises(HandoffError, match=r"observes \['hint'\], which are reserved"):
        corrections_schema("reach", 20.0, {"hint": FieldSpec(shape=())}, ACTIONS, further=further)
