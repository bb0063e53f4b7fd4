"""A review without a browser: what it shows, what it takes, and the store that it writes."""

from __future__ import annotations

import io
import shutil
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from flows.review import session as session_module
from flows.review.data_set import ReviewedStore, open_reviewed, why_not_edited
from flows.review.review_log import LOG, ReviewLog
from flows.review.session import ReviewSession
from robots.episodes.pack import pack_store
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from tests.flows.review.recordings import LENGTHS, append_episode, brightness
from tests.robots.episodes.formats.rosbag_files import messages, values, write_mcap
from tests.robots.storage.bucket import served_bucket


def written(session: ReviewSession, by: str = "ada") -> EpisodeStore:
    session.write(by).join()
    assert session.copy.trouble == ""
    return EpisodeStore.open(Path("picks_review") / session.copy.store)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def same_samples(one: EpisodeStore, first: int, other: EpisodeStore, second: int) -> bool:
    return all(
        np.array_equal(values, other.read(second, stream)[name])
        for stream in one.schema.streams
        for name, values in one.read(first, stream).items()
    )


def test_the_list_says_what_about_an_episode_asks_for_a_look(session: ReviewSession) -> None:
    rows = session.overview()["episodes"]
    assert [row["flags"] for row in rows] == [
        [],
        ["contradicted", "corrected"],
        ["unlabelled", "dropped"],
        ["failures", "faults", "short"],
        ["failures"],
    ]
    assert (rows[1]["takeovers"], rows[1]["corrected"]) == (2, 11 / 40)
    assert (rows[0]["takeovers"], rows[0]["seconds"]) == (0, 1.5)
    assert rows[2]["note"] == "camera was covered"


def test_signals_have_curves_events_and_who_acted(session: ReviewSession) -> None:
    signals = session.episode(1)
    curves = {curve["name"]: curve for curve in signals["curves"]}
    assert list(curves) == ["action", "q", "gripper", "reward", "success"]
    assert [curve["name"] for curve in signals["curves"] if not curve["main"]] == ["q"]
    assert curves["action"]["entries"] == ["x", "y", "z", "grip"]
    assert curves["action"]["values"][0][10] == pytest.approx(np.sin(0.5 + 1), abs=1e-4)
    assert curves["action"]["proposed"][0][10] == pytest.approx(np.sin(1.5) - 0.2, abs=1e-4)
    assert signals["acted"] == [
        (0, 10, None),
        (10, 16, "ada"),
        (16, 25, None),
        (25, 30, "ada"),
        (30, 40, None),
    ]
    assert signals["events"] == [{"step": 39, "what": "success becomes 1"}]


def test_values_that_are_not_finite_are_gaps(session: ReviewSession, store: Path) -> None:
    data = ReviewedStore(store)
    read = data.read

    def with_gap(episode: int, fields: Any, steps: slice = slice(None)) -> dict[str, np.ndarray]:
        arrays = read(episode, fields, steps)
        arrays["reward"] = arrays["reward"].copy()
        arrays["reward"][3] = np.nan
        return arrays

    data.read = with_gap  # type: ignore[method-assign]
    curves = ReviewSession(store, data, None, "", "all").episode(0)["curves"]
    (reward,) = [curve["values"][0] for curve in curves if curve["name"] == "reward"]
    assert (reward[2], reward[3], reward[4]) == (0.1, None, 0.2)


def test_pictures_are_those_of_camera_and_step(session: ReviewSession) -> None:
    for step in (0, 15, 16, 34):
        shown = np.asarray(Image.open(io.BytesIO(session.picture(2, 0, step))))
        assert shown.shape == (48, 64, 3)
        assert abs(int(shown[20, 20, 0]) - brightness(2, step)) <= 2
    wrist = np.asarray(Image.open(io.BytesIO(session.picture(2, 1, 3))))
    assert abs(int(wrist[20, 20, 0]) - (255 - brightness(2, 3))) <= 2


def test_only_the_pictures_around_a_step_are_decoded(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = ReviewedStore(store)
    asked: list[slice] = []
    read = data.read

    def counted(episode: int, fields: Any, steps: slice = slice(None)) -> dict[str, np.ndarray]:
        asked.append(steps)
        return read(episode, fields, steps)

    monkeypatch.setattr(data, "read", counted)
    session = ReviewSession(store, data, None, "", "all")
    for step in range(16, 32):
        session.picture(1, 0, step)
    assert asked == [slice(16, 32)]


def test_a_written_store_has_every_change_and_says_who_why_and_when(
    session: ReviewSession, store: Path
) -> None:
    before = contents(store)
    session.change("ada", 0, "verdict", "failure")
    session.change("ada", 0, "note", "dropped the cube")
    session.change("eve", 1, "trim", [5, 20])
    session.change("eve", 2, "verdict", "success")
    session.change("ada", 3, "verdict", "discard")
    session.change("ada", 3, "note", "only a fault")
    assert session.changes()["pending"] == [0, 1, 2, 3]
    copy = written(session)
    assert session.copy.summary == "4 episodes: 2 relabelled, 1 shortened, 1 left out."
    assert session.changes()["pending"] == []
    assert contents(store) == before, "the recording is as it was, byte for byte"
    raw = EpisodeStore.open(store)
    assert [copy.metadata(number)["seed"] for number in range(4)] == [0, 1, 2, 4]
    relabelled = copy.metadata(0)
    assert (relabelled["success"], relabelled["labelled_by"]) == (False, "ada")
    assert relabelled["note"] == "dropped the cube"
    deletion, own = relabelled["edits"]
    assert deletion["done"] == ["deleted episode 3 of picks.zarr"]
    assert (deletion["by"], deletion["reason"]) == ("ada", "only a fault")
    assert own["done"] == [
        "success: true to false",
        'labelled_by: "task" to "ada"',
        'note: none to "dropped the cube"',
    ]
    assert (own["by"], own["reason"]) == ("ada", "dropped the cube")
    assert own["when"].endswith("Z")
    assert copy.read(1, "policy", ["q"])["q"].tolist() == (
        raw.read(1, "policy", ["q"], slice(5, 20))["q"].tolist()
    )
    assert copy.read(1, "final")["q"].tolist() == (
        raw.read(1, "policy", ["q"], slice(20, 21))["q"].tolist()
    )
    assert copy.metadata(1)["edits"][1]["by"] == "eve"
    assert "discard_reason" not in copy.metadata(2)
    assert copy.metadata(2)["success"] is True
    assert all(same_samples(copy, mine, raw, its) for mine, its in ((0, 0), (2, 2), (3, 4)))


def test_undone_changes_are_in_no_later_store(session: ReviewSession, store: Path) -> None:
    session.change("ada", 0, "verdict", "failure")
    session.change("ada", 1, "trim", [5, 20])
    written(session)
    undone = session.undo("ada")
    assert undone is not None
    assert (undone.episode, undone.what) == (1, "trim")
    assert session.changes()["pending"] == [1]
    copy = written(session)
    assert copy.path.name == "reviewed-2.zarr"
    raw = EpisodeStore.open(store)
    assert copy.ends("policy").tolist() == raw.ends("policy").tolist()
    assert all(same_samples(copy, number, raw, number) for number in range(5))
    session.undo("ada")
    with pytest.raises(HandoffError, match="every episode is as it was recorded"):
        session.write("ada")


def test_a_second_reviewer_sees_the_changes_of_the_first(session: ReviewSession) -> None:
    session.change("ada", 0, "verdict", "failure")
    (change,) = session.changes()["decisions"][0].values()
    assert (change["value"], change["by"]) == ("failure", "ada")
    assert session.undo("eve") is None, "undo takes back one's own changes"
    session.change("eve", 0, "verdict", "success")
    assert session.changes()["decisions"][0]["verdict"]["by"] == "eve"


def test_episodes_that_are_recorded_meanwhile_join_the_list(
    session: ReviewSession, store: Path
) -> None:
    session.change("ada", 0, "verdict", "failure")
    assert session.changes()["count"] == 5
    with EpisodeStore.open(store, "a") as recorder:
        append_episode(recorder, 5, 25, {"success": True})
    assert session.changes()["count"] == 6
    assert session.overview()["episodes"][5]["steps"] == 25
    session.change("ada", 5, "trim", [0, 20])
    assert written(session).ends("policy")[-1] == sum(LENGTHS) + 20


@pytest.mark.parametrize(
    ("episode", "what", "value", "message"),
    [
        (9, "verdict", "success", "no episode 9, the data set has 0 to 4"),
        (-1, "verdict", "success", "no episode -1"),
        (0, "verdict", "maybe", "none of success, failure, discard"),
        (0, "weight", 3, "is of 'weight', expected verdict, trim, note"),
        (0, "trim", [0, 31], "0 to before 31 of 30"),
        (0, "trim", [5, 5], "must be before the last one"),
        (0, "trim", [True, 5], "are not two numbers"),
        (0, "trim", "0 5", "are not two numbers"),
        (0, "note", "a\nb", "no printable text"),
        (0, "note", "a" * 401, "at most 400 characters"),
        (0, "note", 7, "no printable text"),
    ],
)
def test_a_change_that_does_not_fit_is_refused(
    session: ReviewSession, episode: int, what: str, value: Any, message: str
) -> None:
    with pytest.raises(HandoffError, match=message):
        session.change("ada", episode, what, value)
    assert session.changes()["revision"] == 0


def test_all_steps_are_no_change(session: ReviewSession) -> None:
    assert session.change("ada", 0, "trim", [0, 30]) is None


def test_a_store_that_cannot_be_written_leaves_the_changes_pending(
    session: ReviewSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    for episode in range(5):
        session.change("ada", episode, "verdict", "discard")
    session.write("ada").join()
    assert "all 5 episodes would be deleted" in session.copy.trouble
    assert session.changes()["pending"] == [0, 1, 2, 3, 4]

    def full(*arguments: Any, **options: Any) -> dict[str, Any]:
        raise HandoffError("picks_review: the disk is full.")

    monkeypatch.setattr(session_module, "edit", full)
    session.undo("ada")
    session.write("ada").join()
    assert session.changes()["copy"]["trouble"] == "picks_review: the disk is full."
    assert session.changes()["pending"] == [0, 1, 2, 3]


def test_one_store_is_written_at_a_time(
    session: ReviewSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    edit: Callable[..., Any] = session_module.edit

    def slow(*arguments: Any, **options: Any) -> dict[str, Any]:
        go_on.wait(30.0)
        return edit(*arguments, **options)

    monkeypatch.setattr(session_module, "edit", slow)
    session.change("ada", 0, "verdict", "failure")
    thread = session.write("ada")
    with pytest.raises(HandoffError, match=r"reviewed-1\.zarr is being written for ada"):
        session.write("eve")
    go_on.set()
    thread.join()
    assert session.copy.done == 5
    with pytest.raises(HandoffError, match="the newest store has all changes"):
        session.write("eve")


def test_the_changes_of_another_store_are_refused(session: ReviewSession) -> None:
    session.change("ada", 1, "verdict", "failure")
    Path("other_review").mkdir()
    shutil.copy(Path("picks_review") / LOG, Path("other_review") / LOG)
    other = Path("other.zarr")
    with EpisodeStore.create(other, EpisodeStore.open(Path("picks.zarr")).schema) as store:
        append_episode(store, 0, 12, {})
        append_episode(store, 1, 12, {})
    with (
        closing(ReviewLog(Path("other_review"))) as log,
        pytest.raises(HandoffError, match=r"has changes of another data set than other\.zarr"),
    ):
        ReviewSession(other, ReviewedStore(other), log, "", "all")


def test_a_store_that_was_replaced_during_a_review_is_not_edited(
    session: ReviewSession, store: Path
) -> None:
    session.change("ada", 1, "verdict", "failure")
    schema = EpisodeStore.open(store).schema
    shutil.rmtree(store)
    with EpisodeStore.create(store, schema) as other:
        append_episode(other, 0, 12, {})
        append_episode(other, 1, 12, {})
    assert session.changes()["count"] == 2
    with pytest.raises(HandoffError, match="has changes of another data set"):
        session.write("ada")


def test_a_packed_store_is_looked_at_and_says_why_no_more(store: Path) -> None:
    pack_store(store, Path("picks.zarr.zip"))
    packed = Path("picks.zarr.zip")
    why = why_not_edited(packed, None)
    assert "packed in one file" in why
    with open_reviewed(packed, None) as data:
        session = ReviewSession(packed, data, None, why, "all")
        assert session.overview()["unedited"] == why
        assert session.overview()["episodes"][1]["takeovers"] == 2
        assert session.episode(1)["acted"][1] == (10, 16, "ada")
        shown = np.asarray(Image.open(io.BytesIO(session.picture(2, 0, 7))))
        assert abs(int(shown[20, 20, 0]) - brightness(2, 7)) <= 2
        with pytest.raises(HandoffError, match="import them first"):
            session.change("ada", 0, "verdict", "success")
        with pytest.raises(HandoffError, match="import them first"):
            session.write("ada")


def test_a_data_set_without_a_rate_is_looked_at(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    episodes = tmp_path / "set.npz"
    np.savez(
        episodes,
        action=rng.normal(size=(50, 3)).astype(np.float32),
        q=rng.normal(size=(50, 3)).astype(np.float32),
        episode_ends=np.array([20, 50]),
    )
    why = why_not_edited(episodes, None)
    assert "NumPy archives" in why
    assert f"handoff episodes import {episodes} OUT" in why
    with open_reviewed(episodes, None) as data:
        session = ReviewSession(episodes, data, None, why, "all")
        assert [row["seconds"] for row in session.overview()["episodes"]] == [None, None]
        assert session.episode(1)["steps"] == 30
        assert session.episode(1)["acted"] == []
        with pytest.raises(HandoffError, match="no camera 0"):
            session.picture(0, 0, 0)


def test_topics_with_times_of_their_own_are_imported_first(store: Path) -> None:
    write_mcap(Path("d.mcap"), messages(values()[0]))
    with (
        pytest.raises(HandoffError, match=r"d\.mcap: its fields have capture times of their own"),
        open_reviewed(Path("d.mcap"), None),
    ):
        pass


def test_a_store_in_a_bucket_is_reviewed_into_a_folder(store: Path) -> None:
    pytest.importorskip("obstore")
    with served_bucket() as bucket:
        address = Path(bucket.upload(store, "lab/picks.zarr"))
        with (
            open_reviewed(address, None) as data,
            closing(ReviewLog(Path("picks_review"))) as log,
        ):
            session = ReviewSession(address, data, log, why_not_edited(address, None), "all")
            shown = np.asarray(Image.open(io.BytesIO(session.picture(2, 0, 7))))
            assert abs(int(shown[20, 20, 0]) - brightness(2, 7)) <= 2
            session.change("ada", 0, "verdict", "failure")
            copy = written(session)
            assert copy.metadata(0)["success"] is False


def test_a_recording_that_goes_on_is_not_disturbed(session: ReviewSession, store: Path) -> None:
    with EpisodeStore.open(store, "a") as recorder:
        session.change("ada", 0, "verdict", "failure")
        assert written(session).num_episodes == 5
        append_episode(recorder, 5, 25, {"success": True})
    assert EpisodeStore.open(store).num_episodes == 6


def test_an_empty_store_is_one_line(store: Path) -> None:
    schema = EpisodeStore.open(store).schema
    EpisodeStore.create(Path("empty.zarr"), schema).close()
    with (
        pytest.raises(HandoffError, match=r"empty.zarr: has no episodes yet"),
        open_reviewed(Path("empty.zarr"), None),
    ):
        pass
