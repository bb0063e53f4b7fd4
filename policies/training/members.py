"""Members of an ensemble that are trained one after the other, each with its own seed, folder and
part of the progress."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from robots.interfaces import Progress


def member_seed(seed: int, number: int) -> int:
    """Seed of a member's weights and minibatches; the first member has that of the options."""
    if number == 0:
        return seed
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0] & 0x7FFFFFFF)


def member_folder(out: Path, number: int) -> Path:
    """Folder of a member; the first has its files in `out` itself, as a single one would."""
    return out if number == 0 else out / f"member_{number}"


def member_progress(progress: Progress, number: int, members: int) -> Progress:
    """Progress of a member's training, as a part of that of all members; of several, the note tells
    the member."""
    return partial(_count, progress, number, members)


def _count(
    progress: Progress, number: int, members: int, done: int, total: int, note: str = ""
) -> None:
    # What a note says, such as the time left, is of this member alone.
    if note and members > 1:
        note = f"{note}, member {number + 1} of {members}"
    progress(number * total + done, members * total, note)
