"""Keeps finished batches of episodes in a folder, so that an interrupted evaluation goes on with
the missing ones."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from robots.storage.durable import explain_write_errors, write_atomically
from sim.evaluation.protocol import Protocol, digest, protocol_statement
from sim.evaluation.rollout import EpisodeResult

_ABOUT = "about"
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile)


@dataclass(frozen=True)
class EpisodeJournal:
    """One compressed NumPy file per finished batch.

    The folder must belong to one agent: neither files nor names tell whose episodes they are.
    """

    folder: Path
    protocol: str
    """Digest of the protocol's statement."""
    record: bool
    """Whether the episodes contain observations."""
    specifications: Mapping[str, str]
    """Formulas of signal temporal logic by name, whose robustness the episodes contain."""

    @classmethod
    def open(
        cls, folder: Path, protocol: Protocol, record: bool, specifications: Mapping[str, str]
    ) -> EpisodeJournal:
        """Returns the journal in `folder`, which is created if it is missing.

        Raises:
            HandoffError: it cannot be created.
        """
        with explain_write_errors(folder, "finished episodes cannot be kept"):
            folder.mkdir(parents=True, exist_ok=True)
        return cls(folder, digest(protocol_statement(protocol)), record, specifications)

    def write(self, seeds: Sequence[int], episodes: Sequence[EpisodeResult]) -> None:
        """Keeps a finished batch, which is then on the disk.

        Raises:
            HandoffError: it cannot be written.
        """
        arrays: dict[str, np.ndarray] = {}
        rows = []
        for number, episode in enumerate(episodes):
            row = asdict(episode)
            arrays[f"{number}/action"] = row.pop("actions")
            trajectory = row.pop("trajectory")
            for name, values in (trajectory or {}).items():
                arrays[f"{number}/trajectory/{name}"] = values
            rows.append(row)
        about = {**self._about(seeds), "episodes": rows}
        file = BytesIO()
        arrays[_ABOUT] = np.array(json.dumps(about))
        np.savez_compressed(file, allow_pickle=False, **arrays)
        path = self._path(seeds)
        with explain_write_errors(path, f"{len(episodes)} finished episodes are not stored"):
            write_atomically(path, file.getvalue())

    def read(self, seeds: Sequence[int]) -> list[EpisodeResult] | None:
        """Returns the finished batch of these seeds; None if it is missing, damaged or that of
        another protocol."""
        try:
            with np.load(self._path(seeds), allow_pickle=False) as file:
                about = json.loads(str(file[_ABOUT]))
                rows = about.pop("episodes")
                if about != self._about(seeds):
                    return None
                return [self._episode(file, number, row) for number, row in enumerate(rows)]
        except _UNREADABLE:
            return None

    def _episode(self, file: Any, number: int, row: dict[str, Any]) -> EpisodeResult:
        trajectory = None
        if self.record:
            prefix = f"{number}/trajectory/"
            names = [name for name in file.files if name.startswith(prefix)]
            trajectory = {name.removeprefix(prefix): file[name] for name in names}
        return EpisodeResult(**row, actions=file[f"{number}/action"], trajectory=trajectory)

    def _about(self, seeds: Sequence[int]) -> dict[str, Any]:
        return {
            "protocol": self.protocol,
            "record": self.record,
            "specifications": dict(self.specifications),
            "seeds": list(seeds),
        }

    def _path(self, seeds: Sequence[int]) -> Path:
        return self.folder / f"{seeds[0]}-{len(seeds)}.npz"
