"""Keeps the versions of a session's success classifier, each in a folder of its own.

`classifiers/0001` has the first refreshed version: `success.onnx`, by which the actor judges, its
`success.json`, and `version.json`, which is written last. The weights are kept of the newest used
version only, from which training goes on. Version 0 is the classifier among the stage's inputs.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robots.config import Whole, config, to_plain, validate
from robots.storage.durable import write_atomically

if TYPE_CHECKING:
    from policies.rl.hil.judged_success import Judgement
    from real.hil.rewards import SuccessVersion

FOLDER = "classifiers"
VERSION = "version.json"
TRAINING = "training"
"""Folder of an unfinished training, in `FOLDER`."""
POLL_SECONDS = 1.0
"""Interval at which the learner looks for a new version [s]."""


@config
class VersionCard:
    """A refreshed version of the classifier."""

    number: Whole
    """Number of the version, from 1."""
    episodes: Whole
    """Number of the session's first episodes with which it was trained."""
    digest: str = ""
    """Digest (hex sha256) of `success.onnx`; empty for a version that is not used."""
    refused: str = ""
    """Reason why the version is not used; empty for one that is."""
    judged: tuple[tuple[Whole, Whole, bool], ...] = ()
    """Episodes that a classifier had ended as solved: number in the actor's journal, number of the
    last step, and whether this version calls the episode solved."""


def version_folder(session: Path, number: int) -> Path:
    """Folder of a version of the session in the folder `session`."""
    return session / FOLDER / f"{number:04d}"


def read_versions(session: Path) -> list[VersionCard]:
    """Reads the finished versions of a session, in order."""
    return [
        validate(VersionCard, json.loads(path.read_text()), str(path)) for path in _cards(session)
    ]


def refused_versions(session: Path) -> dict[str, Any]:
    """Metrics of the versions that are not used: their number, and why the last one is not; empty
    without any."""
    refused = [card for card in read_versions(session) if card.refused]
    if not refused:
        return {}
    return {"refused_classifiers": len(refused), "refused_because": refused[-1].refused}


def write_version(session: Path, card: VersionCard) -> None:
    """Writes the card that makes a version a finished one."""
    text = json.dumps(to_plain(card), indent=2)
    write_atomically(version_folder(session, card.number) / VERSION, text.encode())


def newest_used(session: Path, above: int) -> VersionCard | None:
    """The newest version that is used, if its number is above the given one; else None."""
    for path in reversed(list(_cards(session))):
        if int(path.parent.name) <= above:
            return None
        card = validate(VersionCard, json.loads(path.read_text()), str(path))
        if not card.refused:
            return card
    return None


def newer_success(session: Path) -> Callable[[int], SuccessVersion | None]:
    """Returns what an actor asks for a newer classifier; see
    `real.hil.rewards.ClassifierReward`."""
    from flows.correction.success_reward import success_version

    def newer(number: int) -> SuccessVersion | None:
        card = newest_used(session, number)
        return (
            None
            if card is None
            else success_version(version_folder(session, card.number), card.number)
        )

    return newer


def newer_judgement(
    session: Path, now: Callable[[], float] = time.monotonic
) -> Callable[[int], Judgement | None]:
    """Returns what a learner asks for a newer judgement, which looks at the disk every
    `POLL_SECONDS`; see `policies.rl.hil.judged_success.JudgedSuccess`."""
    import numpy as np

    from policies.rl.hil.judged_success import Judgement

    looked = -float("inf")

    def newer(version: int) -> Judgement | None:
        nonlocal looked
        if now() - looked < POLL_SECONDS:
            return None
        looked = now()
        card = newest_used(session, version)
        if card is None:
            return None
        rows = np.array(card.judged, np.int64).reshape(-1, 3)
        return Judgement(card.number, rows[:, 0], rows[:, 1], rows[:, 2].astype(bool))

    return newer


def versions_overdue(
    session: Path, every: int, now: Callable[[], float] = time.monotonic
) -> Callable[[int], bool]:
    """Returns what tells whether, after so many ended episodes, two versions are due that are not
    finished; it looks at the disk every `POLL_SECONDS`."""
    looked, finished = -float("inf"), 0

    def overdue(episodes: int) -> bool:
        nonlocal looked, finished
        if episodes >= (finished + 2) * every and now() - looked >= POLL_SECONDS:
            looked, finished = now(), len(list(_cards(session)))
        return episodes >= (finished + 2) * every

    return overdue


def remove_unfinished(session: Path) -> None:
    """Removes what a training that did not finish has left."""
    finished = {path.parent.name for path in _cards(session)}
    if (session / FOLDER).is_dir():
        for path in (session / FOLDER).iterdir():
            if path.name not in finished:
                shutil.rmtree(path)


def _cards(session: Path) -> Iterator[Path]:
    yield from sorted((session / FOLDER).glob(f"*/{VERSION}"))
