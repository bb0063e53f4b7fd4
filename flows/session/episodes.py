"""One episode after another with a person in the loop, but without learning: demonstrations,
states, rollouts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from robots.episodes.corrections import EpisodeAssembler, StepOutcome
from robots.interfaces import Intervention, Label, Observation, Operator

if TYPE_CHECKING:
    from sim.vec_env import Worlds

PAUSE_SECONDS = 0.05
"""Between two looks at a person who has paused."""


class Ended(NamedTuple):
    """How an episode ended."""

    steps: int
    solved_steps: int
    """At which the world said that it is solved."""
    success: bool
    label: Label
    """Said by the person; `NONE` where the world ended it."""
    stopped: bool
    """The person wants to stop; the episode was not recorded."""


class Round:
    """What stays the same from episode to episode.

    Args:
        env: one world that freezes when it ends, with a sparse reward.
        operator: who may overrule.
        propose: observation to (1, A).
        pace: speed in units of real time; 0 goes as fast as it can.
        linger: control periods that go on after the first success, in a world that allows it.
        say: shown the operator's status.
    """

    def __init__(
        self,
        env: Worlds,
        operator: Operator,
        propose: Callable[[Observation], np.ndarray],
        *,
        pace: float = 0.0,
        linger: int | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.env, self.operator, self.propose = env, operator, propose
        self._period = 0.0 if pace <= 0.0 else 1.0 / (pace * env.rate_hz)
        self._linger, self._say = linger, say

    def run(
        self, seed: int, assembler: Callable[[Ended], EpisodeAssembler], about: dict[str, object]
    ) -> Ended:
        """One episode from `seed`, committed to the store that `assembler` chooses by how it
        ended."""
        env, operator = self.env, self.operator
        observation = env.reset([seed])
        operator.reset([seed])
        steps: list[tuple[Observation, Intervention, StepOutcome]] = []
        left, solved, label = -1, False, Label.NONE
        next_step = time.monotonic()
        while True:
            requests = operator.requests()
            # What is said while the arm holds still counts with the next step.
            label = requests.label or label
            self._say(operator.status())
            if requests.stop:
                return Ended(len(steps), 0, False, Label.NONE, True)
            if requests.paused:
                time.sleep(PAUSE_SECONDS)
                next_step = time.monotonic()
                continue
            intervention = operator.intervene(self.propose(observation), observation)
            result = env.step(intervention.executed)
            success = bool(result.reward[0] > 0.5)
            if success and not solved and self._linger is not None:
                left = self._linger
            solved |= success
            over = (
                bool(result.terminated[0] | result.truncated[0])
                or left == 0
                or label is not Label.NONE
            )
            left -= left > 0
            judged_success = label is Label.SUCCESS or (success if self._linger is None else solved)
            failed = label is Label.FAILURE or not judged_success
            outcome = StepOutcome(
                reward=result.reward,
                success=np.array([0 if not over else -1 if failed else 1]),
                final_observation=result.final_observation,
                last=np.array([over]),
                policy_version=np.array([-1]),
            )
            steps.append((observation, intervention, outcome))
            observation = result.observation
            if over:
                break
            self._tell(*steps[-1], Label.NONE)
            next_step = max(next_step + self._period, time.monotonic())
            time.sleep(max(0.0, next_step - time.monotonic()))
        solved_steps = sum(int(outcome.reward[0] > 0.5) for _, _, outcome in steps)
        ended = Ended(len(steps), solved_steps, not failed, label, False)
        writer = assembler(ended)
        dropped = label in (Label.REDO, Label.DISCARD)
        reason = label.name.lower() if dropped else None
        metadata = {"seed": seed, "true_success": solved, "discard_reason": reason, **about}
        for frame in steps:
            writer.add(*frame, moved=np.array([True]), about=[metadata])
        # Whoever is told that the episode ended may rely on its being on the disk.
        self._tell(*steps[-1], label)
        return ended

    def _tell(
        self,
        observation: Observation,
        intervention: Intervention,
        outcome: StepOutcome,
        label: Label,
    ) -> None:
        """What came of the step, for an operator who wants to know."""
        from real.console.console_operator import ConsoleOperator

        if isinstance(self.operator, ConsoleOperator):
            self.operator.report_step(
                observation,
                intervention,
                reward=float(outcome.reward[0]),
                success=bool(outcome.success[0] > 0),
                probability=None,
                label=label,
                last=bool(outcome.last[0]),
            )
