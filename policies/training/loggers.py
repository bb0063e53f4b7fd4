"""Logs metrics of a training as JSON lines, and optionally to TensorBoard and Weights & Biases.

An entry is logged after the checkpoint that contains it. A resumed training starts from its
checkpoint, so no step is logged twice; entries after the checkpoint are computed again.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from policies.training.config import TrainingConfig
from robots.storage.durable import explain_write_errors, write_atomically

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter
    from wandb import Run

CURVE = "loss.jsonl"
TENSORBOARD = "tensorboard"
WANDB = "wandb"
_RUN_ID = "wandb-id.txt"


class Logger(Protocol):
    """Logs metrics and images of one training, in the order of the updates."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Logs the metrics after `step` updates."""
        ...

    def image(self, step: int, name: str, file: Path) -> None:
        """Logs a PNG file; loggers without images ignore it."""
        ...

    def flush(self) -> None:
        """Writes everything logged so far to disk."""
        ...

    def close(self) -> None:
        """Closes the logger."""
        ...


def write_json_lines(file: Path, entries: Sequence[Mapping[str, float]]) -> None:
    """Replaces the file atomically, with one JSON object per line."""
    with explain_write_errors(file, "the curve was not saved"):
        write_atomically(file, "".join(json.dumps(entry) + "\n" for entry in entries).encode())


class JsonLines:
    """Logs one JSON object per line; the file is replaced atomically.

    Args:
        file: path of the file.
        entries: entries of the checkpoint that is resumed.
    """

    def __init__(self, file: Path, entries: Sequence[Mapping[str, float]] = ()) -> None:
        self.file = file
        self.entries = list(entries)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Logs the metrics after `step` updates."""
        self.entries.append({"step": step, **values})

    def image(self, step: int, name: str, file: Path) -> None:
        """Does nothing: the image stays where it is."""

    def flush(self) -> None:
        """Replaces the file."""
        write_json_lines(self.file, self.entries)

    def close(self) -> None:
        """Does nothing: the file is complete after every `flush`."""


class TensorBoard:
    """Logs to TensorBoard event files in `folder`.

    Args:
        folder: folder of the files; files of an earlier process are kept.
        done: updates that were logged before; TensorBoard hides later ones of earlier files.
    """

    def __init__(self, folder: Path, done: int = 0) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self.writer: SummaryWriter = SummaryWriter(str(folder), purge_step=done + 1)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Logs every metric as a scalar."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def image(self, step: int, name: str, file: Path) -> None:
        """Logs a copy of the image."""
        from matplotlib.image import imread

        self.writer.add_image(name, imread(file)[..., :3], step, dataformats="HWC")

    def flush(self) -> None:
        """Writes the events."""
        self.writer.flush()

    def close(self) -> None:
        """Closes the file."""
        self.writer.close()


class WeightsAndBiases:
    """Logs to a Weights & Biases run in the folder `wandb` of `out`.

    The run's id is saved, so that a resumed training continues the run. Offline, a resumed training
    writes another folder of the same run, and `wandb sync --append` joins them.

    Args:
        out: directory of the training.
        online: whether metrics are sent to the service; otherwise they are written to files.
        done: updates that were logged before; 0 starts a new run.
    """

    def __init__(self, out: Path, online: bool, done: int = 0) -> None:
        # Error reports would be sent even in offline mode; the variable is read on import.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        id_file = out / _RUN_ID
        if not (done and id_file.exists()):
            write_atomically(id_file, uuid.uuid4().hex[:8].encode())
        self.run: Run = wandb.init(
            project="handoff",
            name=out.name,
            id=id_file.read_text(),
            dir=out,
            mode="online" if online else "offline",
            resume="allow" if online else None,
            reinit="create_new",
            settings=wandb.Settings(
                console="off",
                silent=True,
                disable_git=True,
                disable_code=True,
                x_disable_stats=True,
                x_disable_machine_info=True,
                x_save_requirements=False,
            ),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Logs the metrics after `step` updates."""
        self.run.log(dict(values), step=step, commit=True)

    def image(self, step: int, name: str, file: Path) -> None:
        """Logs a copy of the image."""
        import wandb

        # Steps must increase, and this one already has its metrics.
        self.run.log({name: wandb.Image(str(file))}, step=step + 1, commit=True)

    def flush(self) -> None:
        """Does nothing: wandb writes in a background process."""

    def close(self) -> None:
        """Finishes the run."""
        self.run.finish()


def open_loggers(config: TrainingConfig, out: Path, done: int) -> list[Logger]:
    """The loggers of `config` in addition to JSON lines.

    Args:
        config: training options.
        out: directory of the training.
        done: updates that were logged before.
    """
    loggers: list[Logger] = []
    for kind in config.loggers:
        match kind:
            case "tensorboard":
                loggers.append(TensorBoard(out / TENSORBOARD, done))
            case "wandb":
                loggers.append(WeightsAndBiases(out, config.wandb_mode == "online", done))
    return loggers


def log_images(config: TrainingConfig, out: Path, images: Mapping[str, Path]) -> None:
    """Logs PNG files of the finished training in `out`."""
    for logger in open_loggers(config, out, config.steps):
        for name, file in images.items():
            logger.image(config.steps, name, file)
        logger.flush()
        logger.close()
