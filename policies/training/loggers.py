"""Logs the numbers of a training: JSON lines always; TensorBoard and Weights & Biases when asked
for.

Loggers are told of an entry after the checkpoint that holds it. A training that was killed goes on
from its checkpoint, so none of them is told of a step twice; entries that no checkpoint held are
worked out anew.
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

CURVE, TENSORBOARD, WANDB = "loss.jsonl", "tensorboard", "wandb"
_RUN_ID = "wandb-id.txt"


class Logger(Protocol):
    """Takes numbers and pictures of one training, in the order of the updates."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Takes the values after `step` updates."""
        ...

    def picture(self, step: int, name: str, file: Path) -> None:
        """Takes a PNG file, which may be left out where there is no place for it."""
        ...

    def flush(self) -> None:
        """Puts what it was told so far on the disk."""
        ...

    def close(self) -> None:
        """Ends; nothing is told afterwards."""
        ...


def write_json_lines(file: Path, entries: Sequence[Mapping[str, float]]) -> None:
    """Replaces the file by one JSON object per entry and line."""
    with explain_write_errors(file, "the curve was not saved"):
        write_atomically(file, "".join(json.dumps(entry) + "\n" for entry in entries).encode())


class JsonLines:
    """One JSON object per line, the file replaced whole.

    Args:
        file: of the lines.
        entries: of the checkpoint that is gone on from.
    """

    def __init__(self, file: Path, entries: Sequence[Mapping[str, float]] = ()) -> None:
        self.file, self.entries = file, list(entries)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Takes the values after `step` updates."""
        self.entries.append({"step": step, **values})

    def picture(self, step: int, name: str, file: Path) -> None:
        """Leaves the picture where it is."""

    def flush(self) -> None:
        """Replaces the file."""
        write_json_lines(self.file, self.entries)

    def close(self) -> None:
        """Does nothing: the file is whole after every `flush`."""


class TensorBoard:
    """Event files in `folder`.

    Args:
        folder: of the files; those of an earlier process stay.
        done: updates that were logged before; TensorBoard hides what the files say of later ones.
    """

    def __init__(self, folder: Path, done: int = 0) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self.writer: SummaryWriter = SummaryWriter(str(folder), purge_step=done + 1)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Takes the values after `step` updates, one scalar each."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def picture(self, step: int, name: str, file: Path) -> None:
        """Copies the picture."""
        from matplotlib.image import imread

        self.writer.add_image(name, imread(file)[..., :3], step, dataformats="HWC")

    def flush(self) -> None:
        """Writes the events."""
        self.writer.flush()

    def close(self) -> None:
        """Ends the file."""
        self.writer.close()


class WeightsAndBiases:
    """A run of Weights & Biases in the folder `wandb` below `out`.

    Its number is kept, so that a resume goes on with it. Offline, a resume begins another folder of
    the same run, and `wandb sync --append` joins them.

    Args:
        out: directory of the training.
        online: whether the numbers are sent to the service, otherwise they stay in files.
        done: updates that were logged before; at 0 it is another run.
    """

    def __init__(self, out: Path, online: bool, done: int = 0) -> None:
        # Its reports of its own errors would leave the machine even offline; read when it is
        # imported.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        kept = out / _RUN_ID
        if not (done and kept.exists()):
            write_atomically(kept, uuid.uuid4().hex[:8].encode())
        self.run: Run = wandb.init(
            project="handoff",
            name=out.name,
            id=kept.read_text(),
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
        """Takes the values after `step` updates."""
        self.run.log(dict(values), step=step, commit=True)

    def picture(self, step: int, name: str, file: Path) -> None:
        """Copies the picture."""
        import wandb

        # Its steps only ever grow, and this one has its numbers already.
        self.run.log({name: wandb.Image(str(file))}, step=step + 1, commit=True)

    def flush(self) -> None:
        """Does nothing: its own process writes at once."""

    def close(self) -> None:
        """Ends the run."""
        self.run.finish()


def open_loggers(config: TrainingConfig, out: Path, done: int) -> list[Logger]:
    """The loggers that `config` asks for beside the JSON lines.

    Args:
        config: of the training.
        out: its directory.
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


def log_pictures(config: TrainingConfig, out: Path, pictures: Mapping[str, Path]) -> None:
    """Shows PNG files beside the curve of the finished training in `out`."""
    for logger in open_loggers(config, out, config.steps):
        for name, file in pictures.items():
            logger.picture(config.steps, name, file)
        logger.flush()
        logger.close()
