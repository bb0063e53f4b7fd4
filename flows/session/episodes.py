"""Runs and records episodes with a person in the loop, without learning."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from robots.episodes.corrections import EpisodeAssembler, StepOutcome
from robots.episodes.metadata.episode_metadata import episode_end
from robots.interfaces import Intervention, Label, Observation, Operator

if TYPE_CHECKING:
    from robots.episodes.store import EpisodeStore
    from sim.vec_env import EngineVecEnv

PAUSE_SECONDS = 0.05
"""Polling interval while the person has paused [s]."""


LABELLED = "labelled_steps"
"""Metadata: number of steps that count as success because they follow the person's label."""
CONTRADICTED = "contradicted"
"""Metadata: whether the person has kept a label that the simulator contradicts."""


class EpisodeOutcome(NamedTuple):
    """Outcome of one episode."""

    steps: int
    solved_steps: int
    """Number of steps that count as success: the environment reported it, or the person's label
    did."""
    labelled_steps: int
    """Number of these that follow the person's label of success."""
    success: bool
    label: Label
    """Label given by the person; `NONE` if the environment ended the episode."""
    stopped: bool
    """The person ended the session; the episode was not recorded."""


class EpisodeLoop:
    """Runs episodes of one environment with an operator.

    Args:
        env: one environment that freezes at the end of an episode, with a sparse reward.
        operator: can intervene at every step.
        propose: policy, from observation to actions (1, A).
        pace: speed in units of real time; 0 runs at full speed.
        linger: control periods after the first success, in an environment that continues after
            success; None ends with the environment.
        say: called with the operator's status.
        label_linger: control periods that an episode continues after a label of success, with the
            arm at rest, each of them a success; 0 ends with the label.
        object_to_label: called once per episode with a sentence where a label contradicts the
            environment; the label then counts only if it is given again. None takes every label.
    """

    def __init__(
        self,
        env: EngineVecEnv,
        operator: Operator,
        propose: Callable[[Observation], np.ndarray],
        *,
        pace: float = 0.0,
        linger: int | None = None,
        say: Callable[[str], None] = lambda text: None,
        label_linger: int = 0,
        object_to_label: Callable[[str], None] | None = None,
    ) -> None:
        self.env = env
        self.operator = operator
        self.propose = propose
        self._period = 0.0 if pace <= 0.0 else 1.0 / (pace * env.rate_hz)
        self._linger = linger
        self._say = say
        self._label_linger = label_linger
        self._object = object_to_label

    def run(
        self,
        seed: int,
        assembler: EpisodeAssembler,
        metadata: dict[str, object],
        choose: Callable[[EpisodeOutcome], EpisodeStore | None] = lambda outcome: None,
    ) -> EpisodeOutcome:
        """Runs and records one episode.

        Args:
            seed: seed of the start.
            assembler: recorder of the episode; one that the person stops is dropped.
            metadata: metadata of the episode.
            choose: chooses the store of the episode by its outcome; None is that of `assembler`.
        """
        env, operator = self.env, self.operator
        observation = env.reset([seed])
        operator.reset([seed])
        steps = solved_steps = labelled_steps = 0
        remaining = -1
        solved = success = objected = False
        label = Label.NONE
        next_step = time.monotonic()
        while True:
            # Requests of the operator: label, stop, pause.
            requests = operator.requests()
            if not objected and self._contradicts(requests.label, success):
                objected = True
                requests = requests._replace(label=Label.NONE, paused=True)
            # A label given during a pause applies to the next step.
            label = requests.label or label
            self._say(operator.status())
            if requests.stop:
                assembler.drop()
                return EpisodeOutcome(steps, 0, 0, False, Label.NONE, True)
            if requests.paused:
                time.sleep(PAUSE_SECONDS)
                next_step = time.monotonic()
                continue
            # One control step, with the operator's action where they intervene; after a label of
            # success the arm rests.
            rests = label is Label.SUCCESS and self._label_linger > 0
            proposed = self.propose(observation)
            intervention = operator.intervene(proposed, observation)
            if rests:
                intervention = _at_rest(intervention)
                labelled_steps += 1
            result = env.step(intervention.executed)
            # Success and end of the episode.
            success = bool(result.reward[0] > 0.5)
            if success and not solved and self._linger is not None:
                remaining = self._linger
            solved |= success
            waits = rests and labelled_steps < self._label_linger
            ended = bool(result.terminated[0] | result.truncated[0]) or (
                not waits and (remaining == 0 or label is not Label.NONE)
            )
            remaining -= remaining > 0
            judged_success = label is Label.SUCCESS or (success if self._linger is None else solved)
            failed = label is Label.FAILURE or not judged_success
            outcome = StepOutcome(
                reward=np.ones_like(result.reward) if rests else result.reward,
                success=np.array([0 if not ended else -1 if failed else 1]),
                final_observation=result.final_observation,
                last=np.array([ended]),
                policy_version=np.array([-1]),
            )
            steps += 1
            solved_steps += int(success or rests)
            step = (observation, intervention, outcome)
            observation = result.observation
            if ended:
                break
            assembler.add(*step, moved=np.array([True]), about=[{}])
            self._report(*step, Label.NONE)
            next_step = max(next_step + self._period, time.monotonic())
            time.sleep(max(0.0, next_step - time.monotonic()))
        # Commit the episode, also a dropped one, with its metadata.
        episode = EpisodeOutcome(steps, solved_steps, labelled_steps, not failed, label, False)
        by_task = bool(result.terminated[0]) or remaining == 0
        end = episode_end(label, intervention.operator, terminated=by_task, judge="task")
        about = {"seed": seed, "true_success": solved, **end.entries(), **metadata}
        if labelled_steps:
            about |= {LABELLED: labelled_steps, CONTRADICTED: objected}
        assembler.add(*step, moved=np.array([True]), about=[about], into=choose(episode))
        # Report the end only after the commit: a listener may rely on the episode being on disk.
        self._report(*step, label)
        return episode

    def _contradicts(self, label: Label, success: bool) -> bool:
        """Whether a label contradicts what the environment reported at the last step, which the
        person then hears."""
        if self._object is None or label not in (Label.SUCCESS, Label.FAILURE):
            return False
        if (label is Label.SUCCESS) == success:
            return False
        sees = "success" if success else "no success"
        name = label.name.lower()
        self._object(
            f"The simulator sees {sees}, so the label {name} does not count yet. Label {name} again to keep it, or go "
            "on."
        )
        return True

    def _report(
        self,
        observation: Observation,
        intervention: Intervention,
        outcome: StepOutcome,
        label: Label,
    ) -> None:
        """Reports the result of the step to an operator at a console."""
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


def _at_rest(intervention: Intervention) -> Intervention:
    """The intervention of a person who keeps their hands off."""
    return intervention._replace(
        executed=intervention.proposed,
        intervening=np.zeros_like(intervention.intervening),
        segment=np.full_like(intervention.segment, -1),
        reason=np.zeros_like(intervention.reason),
    )
