"""The robot's side of human-in-the-loop training: proposes, lets a person overrule, executes, and
writes down.

One loop for simulated worlds and for an arm: it is handed a `VecEnv`. It waits for no learner: it
acts by the newest parameters that have arrived, and what it wrote into its journal is sent by
another thread. A step that is in the journal is committed. An episode that a crash or `stop` cuts
off ends with its last committed step, behind which nothing follows: its value goes on there, as
behind a time limit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from real.hil.actor_policy import ActorPolicy
from real.hil.interfaces import Actions, PolicySource, SameActions, observation_vector
from real.hil.journal import Journal
from real.hil.rewards import OwnReward, RewardSource, Verdict
from robots.config import config
from robots.errors import HandoffError
from robots.interfaces import Clock, Intervention, Label, Observation, Operator, Step, VecEnv
from robots.wire.learner import EPISODES_PER_START, MAX_ROWS
from robots.wire.steps import Steps, chosen, joined

HOLD_SECONDS = 0.05
"""Time between looks at the world's people while the actor holds still [s]."""


@config
class ActorConfig:
    """How an actor acts."""

    seed: int = 0
    """Of the worlds' starts and of exploration; every start of the actor draws anew."""
    random_steps: int = 0
    """Control steps of the journal's first start whose proposals are uniform; SERL 300, HIL-SERL 0
    [C]."""
    deterministic: bool = False
    """Whether the policy's mode is proposed, not a draw."""
    pictures: tuple[str, ...] = ()
    """Fields of the observation that are sent as pictures (uint8)."""
    commit_every: int = 1
    """Control steps per entry of the journal. Above 1 a crash loses up to that many less one, which
    is for simulation far beyond real time; the end of an episode is always committed at once."""


class Acted(NamedTuple):
    """One control step of N worlds, for who looks on: displays, recorders."""

    observation: Observation
    """Before the step."""
    intervention: Intervention
    """In the world's actions."""
    step: Step
    verdict: Verdict
    """With what a person said of the episode worked in."""
    label: Label
    """What a person said of the episode."""
    steps: Steps
    """What was written down, in the learner's actions; a row per world that moved."""
    last: np.ndarray
    """(N,) bool: the episode ended here."""
    episode: np.ndarray
    """(N,) int64 numbers of the episodes, as in `steps`."""


class Actor:
    """Acts until told to stop. One thread calls `run`; `pause`, `resume` and `stop` may come from
    any.

    Args:
        env: simulated worlds that reset themselves, or an arm.
        operator: who may take over. A label is given to all worlds; people who give any watch one.
        journal: open; where steps are committed.
        source: of parameters.
        config: see there.
        rewards: what is achieved; None takes the world's own reward and end.
        actions: between learner and world; None takes both as the same.
        clock: paces the loop, one control period per step; None leaves the pace to the world.
        vector: observations (N, ...) to the learner's vectors (N, O); None puts all fields but
            pictures side by side.
        starts: tells (N,) the seeds from which the worlds' running episodes began, such as
            `sim.vec_env.Worlds`' `episode_seeds`; they key the operator's chance and a repeated
            start. None: a repeated start is a new one.
        hold: called about 20 times per second while the actor holds still: it has no parameters
            yet, or is paused. An arm keeps its position; a simulated world needs nothing.
        watch: told of every step, in the acting thread; with `commit_every` 1 the step has been
            committed.
    """

    def __init__(
        self,
        env: VecEnv,
        operator: Operator,
        journal: Journal,
        source: PolicySource,
        config: ActorConfig | None = None,
        *,
        rewards: RewardSource | None = None,
        actions: Actions | None = None,
        clock: Clock | None = None,
        vector: Callable[[Observation], np.ndarray] | None = None,
        starts: Callable[[], np.ndarray] | None = None,
        hold: Callable[[], None] = lambda: None,
        watch: Callable[[Acted], None] = lambda acted: None,
    ) -> None:
        self.config = config or ActorConfig()
        self._env, self._operator, self._journal, self._source = env, operator, journal, source
        self._rewards: RewardSource = rewards or OwnReward()
        self._actions: Actions = actions or SameActions(env.action_spec.size)
        self._clock, self._hold, self._watch, self._starts = clock, hold, watch, starts
        self._vector = vector or observation_vector(env.observation_spec)
        n = env.num_envs
        if not 1 <= n * self.config.commit_every <= MAX_ROWS:
            raise HandoffError(
                f"actor: {n} worlds and {self.config.commit_every} steps per entry (commit_every) make entries of "
                f"{n * self.config.commit_every} rows, limit {MAX_ROWS}."
            )
        self._stopping, self._pausing = threading.Event(), threading.Event()
        self._made = self._begun = self._drawn = 0
        self._episode, self._number = np.zeros(n, np.int64), np.zeros(n, np.int64)
        self._observation: Observation = {}
        self._label = Label.NONE
        self._pending: list[Steps] = []

    def run(self, steps: int | None = None) -> int:
        """Starts the worlds and acts until `steps` control steps are made or `stop` is called;
        returns those made.

        Raises:
            HandoffError: what worlds, operator or journal raise; what was executed before has been
                committed.
        """
        made = 0
        self._begin_all()
        try:
            while (steps is None or made < steps) and not self._stopping.is_set():
                policy = self._source.policy
                if self._holds(policy):
                    self._hold()
                    self._stopping.wait(HOLD_SECONDS)
                    continue
                if self._clock is not None:
                    self._clock.advance(1.0 / self._env.rate_hz)
                    # A period may have passed since it was asked.
                    if self._holds(policy):
                        continue
                self._step(policy)
                made += 1
        finally:
            self._commit()
        return made

    def pause(self) -> None:
        """Holds position from the next step on; the episode goes on afterwards."""
        self._pausing.set()

    def resume(self) -> None:
        """Ends `pause`; a pause that the learner or the operator asked for lasts until they end
        it."""
        self._pausing.clear()

    def stop(self) -> None:
        """Ends `run` after the step under way. What is open is committed."""
        self._stopping.set()

    def _holds(self, policy: ActorPolicy | None) -> bool:
        """Whether this is no moment to act: nothing to act by, or somebody wants stillness."""
        requests = self._operator.requests()
        if requests.label != Label.NONE:
            self._label = requests.label
        if requests.stop:
            self._stopping.set()
        without = policy is None and not self._explores()
        return (
            requests.paused
            or requests.stop
            or self._pausing.is_set()
            or self._source.paused
            or without
        )

    def _explores(self) -> bool:
        return self._journal.start == 1 and self._made < self.config.random_steps

    def _step(self, policy: ActorPolicy | None) -> None:
        """One control step of all worlds."""
        observation, actions = self._observation, self._actions
        before = self._vector(observation)
        if not np.isfinite(before).all():
            row, entry = np.argwhere(~np.isfinite(before))[0]
            raise HandoffError(
                f"actor: entry {entry} of the observation of world {row} is {before[row, entry]}, expected a finite "
                "number. Nothing is executed on it; was a sensor lost?"
            )
        proposed, version = self._propose(policy, before, observation)
        intervention = self._operator.intervene(
            actions.to_world(proposed, observation), observation
        )
        persons = intervention.intervening
        theirs = actions.from_world(intervention.executed, observation)
        executed = np.where(persons[:, None], theirs, proposed).astype(np.float32)
        toggle = actions.toggled(executed, observation)
        step = self._env.step(intervention.executed)
        label, self._label = self._label, Label.NONE
        ended = step.terminated | step.truncated
        verdict = _labelled(self._rewards.judge(step), label)
        last = ended | verdict.terminated | (label != Label.NONE)
        steps = Steps(
            episode=self._episode.copy(),
            number=self._number.copy(),
            observation=before,
            action=executed,
            reward=verdict.reward.astype(np.float32),
            next_observation=self._vector(step.final_observation),
            terminated=verdict.terminated,
            truncated=last & ~verdict.terminated,
            intervention=persons.copy(),
            demo=np.zeros(len(persons), bool),
            proposed=proposed,
            toggle=toggle,
            policy_version=np.full(len(persons), version, np.int64),
            pictures={name: observation[name] for name in self.config.pictures},
            next_pictures={name: step.final_observation[name] for name in self.config.pictures},
        )
        moved = step.executed > 0
        steps = steps if moved.all() else chosen(steps, moved)
        if steps.rows:
            self._pending.append(steps)
        if last.any() or len(self._pending) >= self.config.commit_every:
            self._commit()
        self._made += 1
        self._number += moved
        told = Acted(
            observation, intervention, step, verdict, label, steps, last, self._episode.copy()
        )
        self._observation = step.observation
        self._watch(told)
        if last.any():
            self._go_on(last, ended, label)

    def _propose(
        self, policy: ActorPolicy | None, vector: np.ndarray, observation: Observation
    ) -> tuple[np.ndarray, int]:
        """(N, A) actions of the learner, and the version of the policy that they are from; -1 where
        they are chance."""
        draw = np.random.default_rng([self.config.seed, self._journal.start, 1, self._made])
        actions = self._actions
        if policy is None or self._explores():
            uniform = draw.uniform(-1.0, 1.0, (len(vector), actions.size)).astype(np.float32)
            # There and back: a hand's entry becomes the command as which it is understood.
            world = actions.to_world(uniform, observation)
            return actions.from_world(world, observation).astype(np.float32), -1
        if (policy.card.observation, policy.card.action) != (vector.shape[1], actions.size):
            raise HandoffError(
                f"actor: policy {policy.version} is of {policy.card.observation} observed entries and "
                f"{policy.card.action} of an action, this robot has {vector.shape[1]} and {actions.size}. Is the "
                "learner another task's?"
            )
        return policy.act(vector, None if self.config.deterministic else draw), policy.version

    def _commit(self) -> None:
        """Puts what was executed on the disk."""
        pending, self._pending = self._pending, []
        if pending:
            self._journal.append(joined(pending))

    def _begin_all(self) -> None:
        rows = np.arange(self._env.num_envs)
        self._observation = self._env.reset([self._seed() for _ in rows])
        self._begin(rows)

    def _go_on(self, last: np.ndarray, ended: np.ndarray, label: Label) -> None:
        """New episodes in the worlds of which the last one ended; those that did not notice are
        reset."""
        unaware = np.flatnonzero(last & ~ended)
        if label == Label.REDO and self._starts is not None:
            begun = self._starts()
            self._observation = self._env.reset(
                [int(begun[row]) for row in unaware], unaware.tolist()
            )
        elif len(unaware):
            self._observation = self._env.reset([self._seed() for _ in unaware], unaware.tolist())
        self._begin(np.flatnonzero(last))

    def _begin(self, rows: np.ndarray) -> None:
        """Numbers the episodes that now run in the worlds `rows`."""
        for row in rows:
            if self._begun >= EPISODES_PER_START:
                raise HandoffError(
                    f"actor: {self._begun} episodes, the limit of one start. Start it again."
                )
            self._episode[row] = self._journal.start * EPISODES_PER_START + self._begun
            self._begun += 1
        self._number[rows] = 0
        seeds = self._episode[rows] if self._starts is None else self._starts()[rows]
        self._operator.reset([int(seed) for seed in seeds], rows.tolist())
        self._rewards.reset(rows)

    def _seed(self) -> int:
        """Of the next start that the actor chooses."""
        self._drawn += 1
        key = [self.config.seed, self._journal.start, 0, self._drawn]
        return int(np.random.SeedSequence(key).generate_state(1)[0] & 0x7FFFFFFF)


def _labelled(verdict: Verdict, label: Label) -> Verdict:
    """The verdict after a person's word, which counts for all worlds: they see what a reward source
    may not."""
    if label in (Label.SUCCESS, Label.FAILURE):
        success = np.full(len(verdict.success), label == Label.SUCCESS)
        return Verdict(
            success.astype(np.float32), success, np.ones_like(success), verdict.probability
        )
    if label in (Label.REDO, Label.DISCARD):
        none = np.zeros(len(verdict.success), bool)
        return Verdict(verdict.reward, none, none, verdict.probability)
    return verdict
