"""Reads back the loggers' files, also of a training that was killed and resumed."""

import json
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.image import imsave
from torch import nn

from policies.training.config import TrainingConfig
from policies.training.loggers import JsonLines, TensorBoard, log_images, open_loggers
from policies.training.loop import train, without_data
from robots.errors import HandoffError
from robots.interfaces import Progress, no_progress
from tests.policies.kill import run_until_killed

CONFIG = TrainingConfig(
    steps=90,
    learning_rate=1e-2,
    warmup_steps=3,
    log_every=10,
    checkpoint_seconds=0.0,
    loggers=("tensorboard", "wandb"),
)


def learn(config: TrainingConfig, out: Path, progress: Progress) -> None:
    model = nn.Linear(1, 1)
    train(
        config,
        model,
        without_data(lambda step: model(torch.ones(1, 1)).square().sum()),
        "job",
        out,
        progress,
    )


def tensorboard_steps(out: Path, name: str = "loss") -> list[int]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(out / "tensorboard"))
    events.Reload()
    return [event.step for event in events.Scalars(name)]


def wandb_history(out: Path) -> dict[str, list[dict[str, float]]]:
    """Per run its entries, as the files that `wandb sync` would send hold them."""
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]
    from wandb.sdk.internal.datastore import DataStore

    # Its own process may still be writing after a run has ended.
    wandb.teardown()
    history: dict[str, list[dict[str, float]]] = {}
    for file in sorted(out.glob("wandb/offline-run-*/*.wandb")):
        store, number = DataStore(), ""
        store.open_for_scan(str(file))
        while (data := store.scan_data()) is not None:
            record = Record.FromString(data)
            if record.WhichOneof("record_type") == "run":
                number = record.run.run_id
            if record.WhichOneof("record_type") == "history":
                items = {
                    "/".join(item.nested_key): json.loads(item.value_json)
                    for item in record.history.item
                }
                history.setdefault(number, []).append(items)
    return history


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training that was killed after update 37 and resumed."""
    out = tmp_path_factory.mktemp("resumed")
    run_until_killed(37, learn, CONFIG, out)
    learn(CONFIG, out, no_progress)
    return out


@pytest.mark.nightly
def test_the_lines_hold_every_entry_once(resumed: Path):
    entries = [json.loads(line) for line in (resumed / "loss.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in entries] == list(range(10, 100, 10))
    assert list(entries[0]) == [
        "step",
        "loss",
        "learning_rate",
        "cpu_seconds",
        "gradient_norm",
        "batch_wait",
    ]


def test_tensorboard_holds_every_entry_once(resumed: Path):
    assert len(list((resumed / "tensorboard").iterdir())) == 2
    assert (
        tensorboard_steps(resumed)
        == tensorboard_steps(resumed, "gradient_norm")
        == list(range(10, 100, 10))
    )


def test_weights_and_biases_logs_no_step_twice_and_continues_the_same_run(resumed: Path):
    ((number, entries),) = wandb_history(resumed).items()
    assert number == (resumed / "wandb-id.txt").read_text()
    counts = Counter(int(entry["_step"]) for entry in entries)
    assert max(counts.values()) == 1
    # Of what was told just before the kill its own process may have written nothing.
    assert set(range(40, 100, 10)) <= set(counts) <= set(range(10, 100, 10))


def test_offline_numbers_are_those_of_the_lines(resumed: Path):
    last = json.loads((resumed / "loss.jsonl").read_text().splitlines()[-1])
    (entries,) = wandb_history(resumed).values()
    assert {name: entries[-1][name] for name in last if name != "step"} == pytest.approx(
        {name: value for name, value in last.items() if name != "step"}
    )


def test_another_training_in_the_same_folder_is_another_run(tmp_path: Path):
    out = tmp_path / "out"
    out.mkdir()
    for _ in range(2):
        (logger,) = open_loggers(replace(CONFIG, loggers=("wandb",)), out, 0)
        logger.log(1, {"loss": 1.0})
        logger.close()
    assert len(wandb_history(out)) == 2


def test_tensorboard_hides_what_no_checkpoint_held(tmp_path: Path):
    for done, steps in ((0, (1, 2, 3)), (2, (3, 4))):
        logger = TensorBoard(tmp_path / "tensorboard", done)
        for step in steps:
            logger.log(step, {"loss": float(step)})
        logger.close()
        time.sleep(1.0)  # A file's name begins with its second, and files are read by name.
    assert tensorboard_steps(tmp_path) == [1, 2, 3, 4]


def test_images_are_logged_with_the_curve(tmp_path: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    picture = tmp_path / "picture.png"
    imsave(picture, np.zeros((4, 6, 3)))
    log_images(CONFIG, tmp_path, {"sample": picture})
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    (event,) = events.Images("sample")
    assert (event.step, event.height, event.width) == (90, 4, 6)
    (entries,) = wandb_history(tmp_path).values()
    assert (entries[0]["_step"], entries[0]["sample/height"], entries[0]["sample/width"]) == (
        91,
        4,
        6,
    )


def test_without_a_wish_there_are_lines_only(tmp_path: Path):
    learn(replace(CONFIG, loggers=()), tmp_path, no_progress)
    assert {path.name for path in tmp_path.iterdir()} == {"loss.jsonl", "training.pt"}


def test_lines_go_on_from_the_entries_of_the_checkpoint(tmp_path: Path):
    lines = JsonLines(tmp_path / "loss.jsonl", [{"step": 1, "loss": 0.5}])
    lines.log(2, {"loss": 0.25})
    assert not lines.file.exists()
    lines.flush()
    assert lines.file.read_text() == '{"step": 1, "loss": 0.5}\n{"step": 2, "loss": 0.25}\n'


def test_lines_that_cannot_be_written_are_an_error(tmp_path: Path):
    with pytest.raises(HandoffError, match=r"loss\.jsonl: the curve was not saved"):
        JsonLines(tmp_path / "nowhere" / "loss.jsonl").flush()


def test_trackio_continues_the_run_of_a_resumed_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trackio is an extra of its own; its database is read back as its dashboard reads it."""
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "database"))
    pytest.importorskip("trackio")
    from trackio.sqlite_storage import SQLiteStorage  # type: ignore[import-not-found]

    for done, steps in ((0, (1, 2)), (2, (3,))):
        (logger,) = open_loggers(replace(CONFIG, loggers=("trackio",)), tmp_path, done)
        for step in steps:
            logger.log(step, {"loss": 0.5 * step})
        logger.close()
    name = (tmp_path / "trackio-name.txt").read_text()
    logs = SQLiteStorage.get_logs("handoff", name)
    assert [(entry["step"], entry["loss"]) for entry in logs] == [(1, 0.5), (2, 1.0), (3, 1.5)]
