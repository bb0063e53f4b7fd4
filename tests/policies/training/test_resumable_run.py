"""What a run saves on disk, and what a resumed run restores."""

import json
from pathlib import Path

import pytest
import torch

from policies.checkpoint import save_state
from policies.training import resumable_run
from policies.training.resumable_run import ResumableRun
from robots.errors import HandoffError


def run(folder: Path, identity: str = "run") -> ResumableRun:
    return ResumableRun(folder, identity, state="state.pt", curve="curve.jsonl")


def test_a_run_takes_over_state_curve_and_processor_time(tmp_path: Path, clock: list[float]):
    first = run(tmp_path)
    assert first.resume() is None
    with first.timed():
        clock[0] += 2.5
    first.entries.append({"rollout": 1, "return": 0.5})
    first.save({"weights": torch.arange(3)})
    again = run(tmp_path)
    state = again.resume()
    assert state is not None
    assert state["weights"].tolist() == [0, 1, 2]
    assert again.entries == [{"rollout": 1, "return": 0.5}]
    assert again.cpu_seconds() == 2.5
    with again.timed():
        clock[0] += 1.0
        assert again.cpu_seconds() == 3.5
    clock[0] += 7.0
    assert again.cpu_seconds() == 3.5, "what is not timed does not count"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(resumable_run.time, "process_time", lambda: now[0])
    return now


def test_a_state_of_another_run_is_left_alone(tmp_path: Path):
    run(tmp_path, "other").save({})
    mine = run(tmp_path)
    assert mine.resume() is None
    assert mine.entries == []
    assert mine.cpu_seconds() == 0.0


def test_the_curve_is_a_line_per_entry_and_is_written_behind_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made = run(tmp_path)
    for rollout in (1, 2):
        made.entries.append({"rollout": rollout})
        made.save({})
    lines = (tmp_path / "curve.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"rollout": 1}, {"rollout": 2}]

    def full(*_: object) -> None:
        raise HandoffError("the disk is full")

    monkeypatch.setattr(resumable_run, "save_state", full)
    made.entries.append({"rollout": 3})
    with pytest.raises(HandoffError, match="the disk is full"):
        made.save({})
    assert len((tmp_path / "curve.jsonl").read_text().splitlines()) == 2


def test_a_state_with_its_cpu_time_in_the_curve_alone_is_resumed(tmp_path: Path):
    entries = [{"rollout": 1, "cpu_seconds": 4.5}]
    save_state(tmp_path / "state.pt", {"identity": "run", "entries": entries})
    made = run(tmp_path)
    assert made.resume() is not None
    assert made.cpu_seconds() == 4.5


def test_a_finished_run_leaves_its_curve_and_no_state(tmp_path: Path):
    made = run(tmp_path)
    made.save({})
    made.finish()
    made.finish()
    assert [file.name for file in tmp_path.iterdir()] == ["curve.jsonl"]


def test_a_block_that_fails_counts_once(tmp_path: Path, clock: list[float]):
    made = run(tmp_path)

    def fail() -> None:
        with made.timed():
            clock[0] += 1.0
            raise HandoffError("lost")

    with pytest.raises(HandoffError, match="lost"):
        fail()
    clock[0] += 5.0
    assert made.cpu_seconds() == 1.0
