"""Logs metrics of a run as JSON lines, and optionally to TensorBoard, Weights & Biases and Trackio.

An entry is logged after the checkpoint that contains it. A resumed training starts from its
checkpoint, so no step is logged twice; entries after the checkpoint are computed again.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from policies.training.config import LoggingConfig, TrainingConfig
from robots.errors import HandoffError
from robots.storage.durable import explain_write_errors, write_atomically

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter
    from wandb import Run

CURVE = "loss.jsonl"
TENSORBOARD = "tensorboard"
WANDB = "wandb"
_WANDB_ID = "wandb-id.txt"
_TRACKIO_NAME = "trackio-name.txt"
_EXTRAS = {"tensorboard": "loggers", "wandb": "loggers", "trackio": "trackio"}
"""Optional dependencies of Handoff that install the package of a logger."""


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

        id_file = out / _WANDB_ID
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


class Trackio:
    """Logs to a Trackio run of the project `handoff`, in the folder in which Trackio keeps all runs
    (`TRACKIO_DIR`); `trackio show` displays them.

    The run's name is saved, so that a resumed training continues the run.

    Args:
        out: directory of the training.
        done: updates that were logged before; 0 starts a new run.
    """

    def __init__(self, out: Path, done: int = 0) -> None:
        import trackio  # type: ignore[import-not-found]

        name_file = out / _TRACKIO_NAME
        if not (done and name_file.exists()):
            write_atomically(name_file, f"{out.name}-{uuid.uuid4().hex[:8]}".encode())
        # It measures the machine in a thread of its own unless told otherwise.
        self.run: Any = trackio.init(
            project="handoff",
            name=name_file.read_text(),
            resume="allow",
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Logs the metrics after `step` updates."""
        self.run.log(dict(values), step=step)

    def image(self, step: int, name: str, file: Path) -> None:
        """Logs a copy of the image."""
        import trackio  # type: ignore[import-not-found]

        self.run.log({name: trackio.Image(str(file))}, step=step)

    def flush(self) -> None:
        """Does nothing: Trackio writes in a background thread."""

    def close(self) -> None:
        """Finishes the run."""
        self.run.finish()


def check_loggers(config: LoggingConfig) -> None:
    """Checks that the packages of all loggers are installed, before a run has done anything.

    Raises:
        HandoffError: a package is missing; the message says how to install it.
    """
    for kind in config.loggers:
        if find_spec(kind) is None:
            raise HandoffError(
                f"loggers: '{kind}' needs the package {kind}, which is not installed: "
                f"pip install 'handoff[{_EXTRAS[kind]}]'."
            )


def open_loggers(config: LoggingConfig, out: Path, done: int) -> list[Logger]:
    """The loggers of `config` in addition to JSON lines.

    Args:
        config: options of the loggers.
        out: directory of the run.
        done: updates that were logged before.
    """
    loggers: list[Logger] = []
    for kind in config.loggers:
        match kind:
            case "tensorboard":
                loggers.append(TensorBoard(out / TENSORBOARD, done))
            case "wandb":
                loggers.append(WeightsAndBiases(out, config.wandb_mode == "online", done))
            case "trackio":
                loggers.append(Trackio(out, done))
    return loggers


class EntryLog:
    """Logs the entries of a curve to the loggers of a run, each entry once.

    Loggers are opened when there is something to log.

    Args:
        config: loggers; None has none.
        folder: folder of their files, created when needed.
        step: entry with the number under which the others are logged.

    Raises:
        HandoffError: the package of a logger is not installed.
    """

    def __init__(self, config: LoggingConfig | None, folder: Path, step: str = "step") -> None:
        if config is not None:
            check_loggers(config)
        self._config = config if config is not None and config.loggers else None
        self._folder = folder
        self._step = step
        self._loggers: list[Logger] | None = None
        self._logged = 0
        self._last = 0

    def resume(self, entries: Sequence[Mapping[str, float]]) -> None:
        """Takes these entries of an interrupted run as logged."""
        self._logged = len(entries)
        if entries and self._config is not None:
            self._last = int(entries[-1][self._step])

    def log(self, entries: Sequence[Mapping[str, float]]) -> None:
        """Logs the entries after those of the last call.

        Args:
            entries: all entries of the curve so far.
        """
        loggers = self._open()
        for entry in entries[self._logged :]:
            values = {name: value for name, value in entry.items() if name != self._step}
            for logger in loggers:
                logger.log(int(entry[self._step]), values)
        self.resume(entries)
        for logger in loggers:
            logger.flush()

    def image(self, name: str, file: Path) -> None:
        """Logs a PNG file under the number of the last entry."""
        for logger in self._open():
            logger.image(self._last, name, file)
            logger.flush()

    def close(self) -> None:
        """Closes the loggers; a later entry opens them again."""
        for logger in self._loggers or ():
            logger.close()
        self._loggers = None

    def _open(self) -> list[Logger]:
        if self._config is None:
            return []
        if self._loggers is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._loggers = open_loggers(self._config, self._folder, self._last)
        return self._loggers


def log_images(config: TrainingConfig, out: Path, images: Mapping[str, Path]) -> None:
    """Logs PNG files of the finished training in `out`."""
    for logger in open_loggers(config, out, config.steps):
        for name, file in images.items():
            logger.image(config.steps, name, file)
        logger.flush()
        logger.close()
