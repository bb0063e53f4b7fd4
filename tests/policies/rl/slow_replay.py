"""A replay as slow and plain as it can be, against which the fast one is tested; and random
episodes for both."""

from __future__ import annotations

from typing import Any

import numpy as np

from policies.rl.replay.config import ReplayConfig
from robots.wire.steps import Steps, plain_steps

Row = dict[str, Any]


class SlowReplay:
    """Keeps every step ever appended in a list, and walks along it one by one."""

    def __init__(self, config: ReplayConfig) -> None:
        self.config = config
        self.steps: list[Row] = []
        self.next_of_episode: dict[int, int] = {}
        """Per step that of the same episode which was appended next."""

    def append(self, steps: Steps) -> None:
        for row in range(steps.rows):
            for earlier in range(len(self.steps) - 1, -1, -1):
                if self.steps[earlier]["episode"] == steps.episode[row]:
                    self.next_of_episode[earlier] = len(self.steps)
                    break
            self.steps.append(
                {name: value[row] for name, value in steps._asdict().items() if len(value)}
            )

    def stored(self) -> range:
        return range(max(0, len(self.steps) - self.config.capacity), len(self.steps))

    def following(self, serial: int) -> int | None:
        step, later = self.steps[serial], self.next_of_episode.get(serial)
        if step["terminated"] or step["truncated"] or later is None or later >= len(self.steps):
            return None
        return later if self.steps[later]["number"] == step["number"] + 1 else None

    def ended(self, serial: int) -> bool:
        step = self.steps[serial]
        return bool(step["terminated"] or (self.config.timeouts_end and step["truncated"]))

    def transition(self, serial: int) -> Row:
        config = self.config
        wanted = config.horizon if config.horizon > 1 else config.n_step
        run = [serial]
        while len(run) < wanted and (after := self.following(run[-1])) is not None:
            run.append(after)
        last = self.steps[run[-1]]
        actions = np.zeros((config.horizon, len(last["action"])), np.float32)
        for k, one in enumerate(run[: config.horizon]):
            actions[k] = self.steps[one]["action"]
        whole = config.horizon == 1 or len(run) == wanted or last["terminated"] or last["truncated"]
        return {
            "observation": self.steps[serial]["observation"],
            "action": actions.reshape(-1),
            "reward": sum(
                config.discount**k * self.steps[one]["reward"] for k, one in enumerate(run)
            ),
            "toggles": sum(
                config.discount**k * self.steps[one]["toggle"] for k, one in enumerate(run)
            ),
            "discount": 0.0 if self.ended(run[-1]) else config.discount ** len(run),
            "next_observation": last["next_observation"],
            "demo": self.steps[serial]["demo"],
            "intervention": self.steps[serial]["intervention"],
            "valid": np.arange(config.horizon) < len(run),
            "whole": bool(whole),
            "mc_return": self.mc_return(serial),
        }

    def mc_return(self, serial: int) -> float:
        total, weight, at = 0.0, 1.0, serial
        while True:
            step = self.steps[at]
            total += weight * step["reward"]
            weight *= self.config.discount
            if step["terminated"] or step["truncated"]:
                tail = self.config.mc_tail / (1.0 - self.config.discount)
                return total if self.ended(at) else total + weight * tail
            after = self.following(at)
            if after is None:
                return -np.inf
            at = after


def random_batches(rng: np.random.Generator, batches: int, largest: int) -> list[Steps]:
    """Batches of up to `largest` steps of interleaved episodes, some steps of which are missing; O
    = 2, A = 1."""
    running = dict.fromkeys(range(4), 0)
    fresh, made = 4, []
    for _ in range(batches):
        rows: list[tuple[int, int, bool, bool]] = []
        for _ in range(int(rng.integers(1, largest + 1))):
            episode = int(rng.choice(list(running)))
            number = running[episode]
            terminated, truncated = bool(rng.random() < 0.1), bool(rng.random() < 0.1)
            running[episode] += 1
            if terminated or truncated:
                del running[episode]
                running[fresh] = 0
                fresh += 1
            if rng.random() > 0.1:
                rows.append((episode, number, terminated, truncated))
        if rows:
            made.append(_steps(rng, np.array(rows)))
    return made


def _steps(rng: np.random.Generator, rows: np.ndarray) -> Steps:
    n = len(rows)
    return plain_steps(
        rows[:, 0],
        rows[:, 1],
        rng.normal(size=(n, 2)),
        rng.normal(size=(n, 1)),
        rng.normal(size=n),
        rng.normal(size=(n, 2)),
        rows[:, 2] > 0,
        rows[:, 3] > 0,
        intervention=rng.random(n) < 0.3,
        toggle=rng.random(n) < 0.3,
        policy_version=int(rng.integers(100)),
    )._replace(demo=rng.random(n) < 0.5)
