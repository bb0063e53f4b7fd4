"""Copies a store of episodes with another reward and success."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from policies.rewards.labels import SUCCESS, EpisodeLabels
from robots.episodes.corrections import FINAL
from robots.episodes.schema import EpisodeSchema
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import Progress
from robots.spec import FieldSpec

REWARD = "reward"


def relabel(
    source: EpisodeStore,
    out: Path,
    label: Callable[[int], EpisodeLabels],
    stream: str,
    cut: bool,
    progress: Progress,
) -> dict[str, Any]:
    """Writes a copy of the episodes to a new store at `out`, with the fields `reward` and `success`
    of the stream and the metadata `success` replaced. An earlier attempt there is removed.

    Args:
        source: recorded episodes.
        out: path of the new store.
        label: reward and success of an episode, given its number.
        stream: stream of the steps.
        cut: whether an episode ends with its first solved step.
        progress: counts episodes.

    Returns:
        Metrics: episodes, solved_episodes, frames, changed_episodes (whose success is another than
        recorded) and mean_return.

    Raises:
        HandoffError: the store is empty or cannot be labelled.
    """
    if not source.num_episodes:
        raise HandoffError(f"{source.path}: 0 episodes, expected at least 1. Was nothing recorded?")
    shutil.rmtree(out, ignore_errors=True)
    solved = changed = frames = 0
    returns = []
    with (
        EpisodeStore.create(out, relabelled_schema(source.schema, stream)) as store,
        store.writer() as writer,
    ):
        for number in range(source.num_episodes):
            labels, metadata = label(number), source.metadata(number)
            steps = labels.steps if cut else len(labels.reward_T)
            writer.append(
                relabelled_streams(source, number, stream, labels, steps),
                {**metadata, SUCCESS: bool(labels.solved_T.any())},
            )
            solved += bool(labels.solved_T.any())
            changed += bool(labels.solved_T.any()) != metadata.get(SUCCESS)
            frames += steps
            returns.append(float(labels.reward_T[:steps].sum()))
            progress(number + 1, source.num_episodes, f"{solved} solved")
    return {
        "episodes": source.num_episodes,
        "solved_episodes": solved,
        "frames": frames,
        "changed_episodes": changed,
        "mean_return": float(np.mean(returns)),
    }


def relabelled_schema(schema: EpisodeSchema, stream: str) -> EpisodeSchema:
    """The schema with the fields `reward` and `success` in the stream."""
    spec = schema.stream(stream)
    labels = {
        REWARD: FieldSpec(shape=(), about="reward that followed the action"),
        SUCCESS: FieldSpec(
            shape=(), dtype="uint8", about="1 where the task is solved after the action"
        ),
    }
    fields = {**spec.fields, **labels}
    return replace(schema, streams={**schema.streams, stream: replace(spec, fields=fields)})


def relabelled_streams(
    source: EpisodeStore, number: int, stream: str, labels: EpisodeLabels, steps: int
) -> dict[str, dict[str, np.ndarray]]:
    """All streams of an episode with its labels, up to `steps` steps of the stream; the observation
    after them is that of the stream `final`, if there is one."""
    streams = {name: source.read(number, name) for name in source.schema.streams}
    rows = streams[stream]
    whole = steps == len(labels.reward_T)
    if not whole and FINAL in streams and stream != FINAL:
        streams[FINAL] = {name: rows[name][steps : steps + 1] for name in streams[FINAL]}
    streams[stream] = {name: values[:steps] for name, values in rows.items()} | {
        REWARD: labels.reward_T[:steps].astype(np.float32),
        SUCCESS: labels.solved_T[:steps].astype(np.uint8),
    }
    return streams
