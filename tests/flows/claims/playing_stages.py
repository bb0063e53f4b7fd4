"""Stages for tests of claims: one plays episodes of a known skill, the other at a twin."""

from __future__ import annotations

import json
import random
from pathlib import Path

from flows.artifacts import Episodes, Evaluation, Output
from robots.config import config
from robots.interfaces import Progress


@config
class PlayConfig:
    """Episodes to play."""

    skill: float = 0.5
    """Share of the starts that are solved."""
    episodes: int = 200
    """Number of starts."""
    first: int = 100
    """Seed of the first start."""
    step: int = 1
    """Difference of the seeds."""
    protocol: str = "a" * 64
    """Digest of the protocol."""
    seed: int = 0
    """Learning seed."""


def play(config: PlayConfig, out: Path, progress: Progress) -> Output[Evaluation]:
    """Plays episodes, each of which is solved by chance, and scores them."""
    rng = random.Random(config.seed)
    drawn = [rng.random() for _ in range(config.episodes)]
    seeds = range(config.first, config.first + config.step * config.episodes, config.step)
    episodes = [
        {"seed": seed, "success": number < config.skill, "score": 1.0 - number / 2.0}
        for seed, number in zip(seeds, drawn, strict=True)
    ]
    table = {"episodes": episodes, "protocol_digest": config.protocol}
    (out / "episodes.json").write_text(json.dumps(table))
    return Output({})


def play_twin(config: PlayConfig, out: Path, progress: Progress) -> Output[Episodes]:
    """Plays episodes as `deploy` records them."""
    solved = round(config.skill * config.episodes)
    rows = [
        {"seed": config.first + i, "success": i < solved, "fault": None}
        for i in range(config.episodes)
    ]
    return Output({"per_start": rows})
