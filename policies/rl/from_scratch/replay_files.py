"""Keeps the steps of a replay buffer in files that are written once, so that a checkpoint takes no
longer as the buffer fills."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from robots.errors import HandoffError

if TYPE_CHECKING:
    from policies.rl.replay.buffer import Replay
    from policies.rl.replay.device_buffer import DeviceReplay

REPLAY_FOLDER = "experience"


class ReplayFiles:
    """Files of the replay's steps: each save writes the new steps to a separate file.

    `Replay.save` keeps a single state, which can be newer than the rest of the checkpoint if a run
    is killed in between. Here the checkpoint lists the files that belong to it.

    Args:
        folder: folder of the files; created by `save`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._parts: list[list[int]] = []

    def save(self, replay: Replay | DeviceReplay) -> list[list[int]]:
        """Writes the steps added since the last call; returns the range of serial numbers (begin,
        end) of each file that is still needed."""
        import torch

        from policies.checkpoint import save_state

        self._folder.mkdir(exist_ok=True)
        oldest = replay.added - len(replay)
        begin = max(oldest, self._parts[-1][1] if self._parts else 0)
        if begin < replay.added:
            columns = {
                name: torch.from_numpy(column) for name, column in replay.rows(begin).items()
            }
            save_state(
                self._file(begin), {"identity": REPLAY_FOLDER, "end": replay.added, **columns}
            )
            self._parts.append([begin, replay.added])
        self._parts = [part for part in self._parts if part[1] > oldest]
        return [list(part) for part in self._parts]

    def remove_others(self, parts: list[list[int]]) -> None:
        """Removes files that are not in `parts`."""
        names = {self._file(begin).name for begin, _ in parts}
        for file in self._folder.glob("*.pt"):
            if file.name not in names:
                file.unlink()

    def load(self, replay: Replay | DeviceReplay, parts: list[list[int]]) -> None:
        """Restores the replay with the same slots.

        Raises:
            HandoffError: a file is missing, damaged, or of another checkpoint.
        """
        import numpy as np

        from policies.checkpoint import read_state

        self._parts = [list(part) for part in parts]
        tables = []
        for begin, end in parts:
            table = read_state(self._file(begin), REPLAY_FOLDER)
            if table is None or table["end"] != end:
                raise HandoffError(
                    f"{self._file(begin)}: is missing, or of another run. Remove the output folder to start a new run."
                )
            tables.append(table)
        added = parts[-1][1] if parts else 0
        if not added:
            return
        names = replay.rows(0, 0)
        size = min(added, replay.config.capacity)
        columns = {
            name: np.concatenate([table[name].numpy() for table in tables])[-size:]
            for name in names
        }
        replay.load_state_dict({"columns": columns, "added": added})

    def _file(self, begin: int) -> Path:
        return self._folder / f"{begin}.pt"
