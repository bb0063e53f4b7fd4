"""What a run saves on disk, and what a resumed run restores."""

import json
from pathlib import Path

import pytest
import torch

from policies.checkpoint import save_state
from policies.training import loggers, resumable_run
from policies.training.config import LoggingConfig
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


class Recorder:
    """A logger that remembers what it was given."""

    def __init__(self, done: int) -> None:
        self.done = done
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.images: list[tuple[int, str]] = []
        self.closed = False

    def log(self, step: int, values: dict[str, float]) -> None:
        self.logged.append((step, values))

    def image(self, step: int, name: str, file: Path) -> None:
        self.images.append((step, name))

    def flush(self) -> None:
        """Everything is in memory."""

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch) -> list[Recorder]:
    opened: list[Recorder] = []

    def open_recorder(config: LoggingConfig, out: Path, done: int) -> list[Recorder]:
        assert out.is_dir()
        opened.append(Recorder(done))
        return [opened[-1]]

    monkeypatch.setattr(loggers, "open_loggers", open_recorder)
    return opened


def logged(folder: Path) -> ResumableRun:
    return ResumableRun(
        folder,
        "run",
        state="state.pt",
        curve="curve.jsonl",
        logging=LoggingConfig(loggers=("tensorboard",)),
        logs=folder / "logs",
        step="rollout",
    )


def test_every_entry_is_logged_once_under_its_number(
    tmp_path: Path, recorders: list[Recorder]
) -> None:
    made = logged(tmp_path)
    for rollout in (1, 2):
        made.entries.append({"rollout": rollout, "success": 0.25 * rollout})
    assert not recorders, "nothing is opened before there is something to log"
    made.save({})
    made.entries.append({"rollout": 3, "success": 0.75})
    made.write_curve()
    made.write_curve()
    made.log_image("curve", tmp_path / "curve.png")
    made.close()
    (recorder,) = recorders
    assert recorder.logged == [
        (1, {"success": 0.25}),
        (2, {"success": 0.5}),
        (3, {"success": 0.75}),
    ]
    assert recorder.images == [(3, "curve")]
    assert recorder.closed


def test_a_resumed_run_logs_what_follows_its_state(
    tmp_path: Path, recorders: list[Recorder]
) -> None:
    first = logged(tmp_path)
    first.entries += [{"rollout": 1.0}, {"rollout": 2.0}]
    first.save({})
    again = logged(tmp_path)
    again.resume()
    again.entries.append({"rollout": 3})
    again.save({})
    assert [recorder.done for recorder in recorders] == [0, 2]
    assert [step for step, _ in recorders[1].logged] == [3]


def test_loggers_that_were_closed_go_on_behind_the_last_entry(
    tmp_path: Path, recorders: list[Recorder]
) -> None:
    made = logged(tmp_path)
    made.entries.append({"rollout": 1})
    made.save({})
    made.close()
    made.entries.append({"rollout": 2})
    made.save({})
    assert [recorder.done for recorder in recorders] == [0, 1]
    assert [step for step, _ in recorders[1].logged] == [2]


@pytest.mark.parametrize(("kind", "extra"), [("trackio", "trackio"), ("wandb", "loggers")])
def test_a_logger_that_is_not_installed_is_refused_before_the_run(
    kind: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loggers, "find_spec", lambda name: None)
    logging = LoggingConfig(loggers=(kind,))  # type: ignore[arg-type]
    with pytest.raises(HandoffError, match=rf"'{kind}' needs .* pip install 'handoff\[{extra}\]'"):
        ResumableRun(tmp_path, "run", state="state.pt", curve="curve.jsonl", logging=logging)
