"""Classifier process of the stage `correct`: trains the success classifier further on the session's
episodes, and publishes its versions."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.correction.config import CorrectConfig
from flows.correction.success_reward import JOURNAL_EPISODE, ONNX
from flows.correction.versions import (
    FOLDER,
    TRAINING,
    VersionCard,
    read_versions,
    version_folder,
    write_version,
)
from policies.rl.hil.config import HilJsrlConfig, HilRlpdConfig, HilSerlConfig, HilWsrlConfig
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import no_progress
from robots.storage.durable import write_atomically

if TYPE_CHECKING:
    from policies.rewards.refresh_success import SuccessRefresh

POLL_SECONDS = 2.0
"""Interval at which the recorded episodes are counted [s]."""


def check_refresh(config: CorrectConfig, sources: Mapping[str, Any]) -> None:
    """Refuses a refresh without a classifier, whose reward nobody reads, or beside a hint that
    compares with the threshold of one version.

    Raises:
        HandoffError: one of these.
    """
    if config.refresh is None:
        return
    if "classifier" not in sources:
        raise HandoffError(
            f"correct: refresh needs the input 'classifier', the stage has {sorted(sources)}. Remove refresh."
        )
    rewarded = HilSerlConfig | HilRlpdConfig | HilJsrlConfig | HilWsrlConfig
    if not isinstance(config.algorithm, rewarded):
        raise HandoffError(
            f"correct: refresh changes the reward of success, which {config.algorithm.kind} does not read. Remove "
            "refresh."
        )
    if config.hints.success is not None:
        raise HandoffError(
            "correct: hints.success compares with one threshold, but refresh chooses one for every version. Remove "
            "one of them."
        )


def refresh(config: CorrectConfig, session: Path, classifier: Path, parent: Connection) -> None:
    """Trains a version for every `refresh.every` recorded episodes, until the process is ended.

    Args:
        config: options of the session.
        session: folder of the session.
        classifier: folder of the classifier that the session began with, and of its data.
        parent: pipe to the parent, which gets `("version", number, refused)` for every finished
            version, with the reason why it is not used, or nothing.
    """
    import torch

    torch.set_num_threads(1)
    assert config.refresh is not None
    trainer = _trainer(config, classifier)
    while True:
        number = len(read_versions(session)) + 1
        count = number * config.refresh.every
        store = _store(session)
        if store is None or store.num_episodes < count:
            parent.poll(POLL_SECONDS)
            continue
        card = make_version(trainer, session, classifier, store, number, count)
        parent.send(("version", number, card.refused))


def make_version(
    trainer: SuccessRefresh,
    session: Path,
    classifier: Path,
    store: EpisodeStore,
    number: int,
    count: int,
) -> VersionCard:
    """Trains version `number` on the first `count` episodes, from the newest version that is used,
    and publishes it; one without a threshold is recorded with the reason."""
    from policies.rewards.success_files import WEIGHTS, classifier_to_onnx, load_classifier

    used = [card.number for card in read_versions(session) if not card.refused]
    previous = version_folder(session, used[-1]) if used else classifier
    out = version_folder(session, number)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    work = session / FOLDER / TRAINING / f"{number:04d}"
    try:
        trainer.train(previous, number, store, count, work, out, no_progress)
    except HandoffError as error:
        card = VersionCard(number=number, episodes=count, refused=str(error))
        write_version(session, card)
        return card
    graph = classifier_to_onnx(*load_classifier(out)).SerializeToString()
    write_atomically(out / ONNX, graph)
    judged = tuple(
        (int(store.metadata(episode)[JOURNAL_EPISODE]), steps - 1, solved)
        for episode, steps, solved in trainer.judge(out, store, count)
    )
    digest = hashlib.sha256(graph).hexdigest()
    card = VersionCard(number=number, episodes=count, digest=digest, judged=judged)
    write_version(session, card)
    if used:
        (previous / WEIGHTS).unlink()
    return card


def _trainer(config: CorrectConfig, classifier: Path) -> SuccessRefresh:
    from policies.rewards.labelled_steps import join_steps, read_labelled_steps
    from policies.rewards.refresh_success import SuccessRefresh, read_options

    assert config.refresh is not None
    options = read_options(classifier)
    fields = options.classifier
    solved = read_labelled_steps(classifier / "solved.zarr", fields, by_policy=False)
    policy = read_labelled_steps(classifier / "policy.zarr", fields, by_policy=True)
    return SuccessRefresh(config.refresh, options, join_steps([solved, policy]))


def _store(session: Path) -> EpisodeStore | None:
    """The episodes that are recorded by now; None before the first."""
    path = session / "store.zarr"
    return EpisodeStore.open(path) if (path / "index.json").exists() else None
