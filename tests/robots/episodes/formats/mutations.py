"""Damages files of a data set at random, and checks that a reader answers with one clear line."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np

from robots.episodes.formats.source import EpisodeSource
from robots.errors import HandoffError

Open = Callable[[Path, bool], AbstractContextManager[EpisodeSource]]
MUTATIONS = int(os.environ.get("HANDOFF_MUTATIONS", "60"))
"""Mutations per format; 500 are asked of a release."""


def check_mutations(
    path: Path, scratch: Path, open_source: Open, mutations: int = MUTATIONS, seed: int = 0
) -> int:
    """Reads damaged copies of a data set; returns how many of them were refused.

    A copy is read whole, or refused with a `HandoffError` of one line; any other exception fails.

    Args:
        path: an undamaged data set, a file or a folder.
        scratch: folder for the copies.
        open_source: opens a data set of the format.
        mutations: number of copies.
        seed: seed of the damage.
    """
    rng = np.random.default_rng(seed)
    refused = 0
    for number in range(mutations):
        copy = scratch / f"mutated{number}" / path.name
        copy.parent.mkdir(parents=True)
        shutil.copytree(path, copy) if path.is_dir() else shutil.copy(path, copy)
        files = sorted(f for f in copy.rglob("*") if f.is_file()) if copy.is_dir() else [copy]
        file = files[rng.integers(len(files))]
        kind = damage(file, rng)
        try:
            with open_source(copy, True) as source:
                for episode in source.episodes(0, source.num_episodes):
                    assert all(len(array) for array in episode.arrays.values())
        except HandoffError as error:
            if "\n" in str(error):
                raise AssertionError(f"mutation {number}: several lines: {error}") from error
            refused += 1
        except Exception as error:
            raise AssertionError(f"mutation {number} ({kind} of {file.name}): {error!r}") from error
        shutil.rmtree(copy.parent)
    return refused


def damage(file: Path, rng: np.random.Generator) -> str:
    """Damages one file, and returns the kind of damage."""
    content = bytearray(file.read_bytes())
    kind = ("truncated", "bits", "zeros", "foreign", "missing", "block")[rng.integers(6)]
    if kind == "truncated":
        content = content[: rng.integers(len(content) + 1)]
    elif kind == "bits":
        for position in rng.integers(max(len(content), 1), size=rng.integers(1, 9)):
            if content:
                content[position] ^= 1 << rng.integers(8)
    elif kind == "zeros":
        start = int(rng.integers(len(content) + 1))
        content[start : start + 64] = bytes(len(content[start : start + 64]))
    elif kind == "foreign":
        content = bytearray(rng.bytes(200))
    elif kind == "block" and len(content) > 128:
        first, second = rng.integers(len(content) - 64, size=2)
        content[first : first + 64] = content[second : second + 64]
    if kind == "missing":
        file.unlink()
    else:
        file.write_bytes(bytes(content))
    return kind
