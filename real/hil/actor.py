"""Runs the actor of human-in-the-loop training: it proposes actions, lets a person overrule them,
executes them and records every step.

It acts in a `robots.interfaces.VecEnv`, such as the simulated ones or an arm of one. It never
waits for the learner: it acts by the newest parameters that have arrived, and another thread sends
the steps in its journal. A step in the journal is committed. An episode that a crash or `stop` cuts
off ends with its last committed step, from which its value is bootstrapped as at a time limit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from real.hil.actor_policy import ActorPolicy
from real.hil.interfaces import (
    ActionMapping,
    Guide,
    IdentityActions,
    Monitor,
    PolicySource,
    observation_vector,
)
from real.hil.journal import Journal
from real.hil.rewards import EnvReward, RewardSource, Verdict
from robots.config import Count, Seed, Whole, config
from robots.errors import HandoffError
from robots.interfaces import Clock, Intervention, Label, Observation, Operator, Step, VecEnv
from robots.wire.learner import EPISODES_PER_START, MAX_ROWS
from robots.wire.steps import GUIDE_VERSION, Steps, concatenate_steps, select_steps

HOLD_SECONDS = 0.05
"""Time between queries of the operator while the actor holds still [s]."""


class ActorStream(IntEnum):
    """Third entry of the seed sequence of an actor's draws, behind its seed and the number of its
    start; the number of the draw follows."""

    EPISODE_SEED = 0
    """The seed of an episode that the actor begins."""
    EXPLORATION = 1
    """The proposals of a control step."""


@config
class ActorConfig:
    """Exploration and recording of an actor."""

    seed: Seed = 0
    """Seed of the environments' starts and of exploration; every start of the actor draws
    others."""
    random_steps: Whole = 0
    """Number of control steps, in the journal's first start, whose proposals are uniform; SERL has
    300, HIL-SERL 0 [C]."""
    deterministic: bool = False
    """Whether the actor proposes the policy's mode instead of a sample."""
    pictures: tuple[str, ...] = ()
    """Fields of the observation that are sent as images (uint8), or as what an encoder of the actor
    makes of them."""
    commit_every: Count = 1
    """Number of control steps per entry of the journal. With n above 1 a crash loses up to n - 1
    steps, which is meant for simulation far faster than real time; the end of an episode is always
    committed at once."""


class ActorStep(NamedTuple):
    """One control step of N environments, for displays and recorders."""

    observation: Observation
    """Observation before the step."""
    intervention: Intervention
    """Proposed and executed actions, as the environment understands them."""
    step: Step
    """Outcome of the step."""
    verdict: Verdict
    """Reward and success, with the person's label taken into account."""
    label: Label
    """The person's label of the episode."""
    steps: Steps
    """The recorded steps, with the learner's actions; a row per environment that moved."""
    last: np.ndarray
    """(N,) bool: the episode ended with this step."""
    episode: np.ndarray
    """(N,) int64 numbers of the episodes, as in `steps`."""
    monitored: Mapping[str, np.ndarray] = {}
    """(N,) further fields by the monitor."""


class Actor:
    """Acts until it is stopped. One thread calls `run`; any thread may call `pause`, `resume` and
    `stop`.

    Args:
        env: N environments that reset themselves.
        operator: person who may take over. A label counts for all environments; a person who gives
            labels watches one.
        journal: an open journal, in which steps are committed.
        source: source of parameters.
        config: exploration and recording; None takes the defaults.
        rewards: source of reward and success; None takes those of the environment.
        actions: mapping between the actions of learner and environment; None if they are the same.
        clock: paces the loop, one control period per step; None leaves the pace to the environment.
        vector: maps observations (N, ...) to the learner's vectors (N, O); None concatenates all
            fields but images.
        encode: maps observations to feature maps of the fields `config.pictures`, once per
            observation; None sends the images themselves.
        guide: proposes in place of the learner in some steps; None has no guide.
        starts: returns (N,) the seeds from which the running episodes began, such as
            `sim.vec_env.EngineVecEnv`' `episode_seeds`. They seed the operator and repeat a start.
            None: a repeated start is a new one.
        monitor: called with every decision before its step; None has no monitor.
        hold: called about 20 times per second while the actor holds still, since it has no
            parameters yet or is paused.
        watch: called with every step, in the acting thread; with `commit_every` 1 the step has been
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
        actions: ActionMapping | None = None,
        clock: Clock | None = None,
        vector: Callable[[Observation], np.ndarray] | None = None,
        encode: Callable[[Observation], Mapping[str, np.ndarray]] | None = None,
        guide: Guide | None = None,
        starts: Callable[[], np.ndarray] | None = None,
        monitor: Monitor | None = None,
        hold: Callable[[], None] = lambda: None,
        watch: Callable[[ActorStep], None] = lambda acted: None,
    ) -> None:
        self.config = config or ActorConfig()
        self._env = env
        self._operator = operator
        self._journal = journal
        self._source = source
        self._rewards: RewardSource = rewards or EnvReward()
        self._actions: ActionMapping = actions or IdentityActions(env.action_spec.size)
        self._clock = clock
        self._vector = vector or observation_vector(env.observation_spec)
        self._encode = encode
        self._guide = guide
        self._starts = starts
        self._monitor = monitor
        self._hold = hold
        self._watch = watch
        n = env.num_envs
        if not 1 <= n * self.config.commit_every <= MAX_ROWS:
            raise HandoffError(
                f"actor: {n} environments and {self.config.commit_every} steps per entry (commit_every) make "
                f"entries of {n * self.config.commit_every} rows, limit {MAX_ROWS}."
            )
        self._stopping = threading.Event()
        self._pausing = threading.Event()
        self._steps_made = 0
        self._episodes_begun = 0
        self._seeds_drawn = 0
        self._episode = np.zeros(n, np.int64)
        """Numbers of the running episodes."""
        self._number = np.zeros(n, np.int64)
        """Numbers of the next steps within their episodes."""
        self._observation: Observation = {}
        self._pictures: Mapping[str, np.ndarray] | None = None
        """Images of the observation, as they are sent; None until they are needed."""
        self._label = Label.NONE
        """Label given since the last step."""
        self._pending: list[Steps] = []
        """Steps that are not committed yet."""

    def run(self, steps: int | None = None) -> int:
        """Resets the environments and acts until `stop` is called or `steps` control steps were
        made; returns the number of steps made.

        Raises:
            HandoffError: an error of the environments, the operator or the journal; all steps
                executed before it have been committed.
        """
        made = 0
        self._begin_all()
        try:
            while (steps is None or made < steps) and not self._stopping.is_set():
                policy = self._source.policy
                if self._must_hold(policy):
                    self._hold()
                    self._stopping.wait(HOLD_SECONDS)
                    continue
                if self._clock is not None:
                    self._clock.advance(1.0 / self._env.rate_hz)
                    # The operator may have asked for stillness while the period passed.
                    if self._must_hold(policy):
                        continue
                self._step(policy)
                made += 1
        finally:
            self._commit()
        return made

    def pause(self) -> None:
        """Holds still from the next step on, within the running episode."""
        self._pausing.set()

    def resume(self) -> None:
        """Ends `pause`; a pause by the learner or the operator lasts until they end it."""
        self._pausing.clear()

    def stop(self) -> None:
        """Ends `run` after the present step; all steps are committed."""
        self._stopping.set()

    def _must_hold(self, policy: ActorPolicy | None) -> bool:
        """Whether the actor has no policy to act by, or was asked to hold still."""
        requests = self._operator.requests()
        if requests.label != Label.NONE:
            self._label = requests.label
        if requests.stop:
            self._stopping.set()
        no_policy = policy is None and not self._explores()
        return (
            requests.paused
            or requests.stop
            or self._pausing.is_set()
            or self._source.paused
            or no_policy
        )

    def _explores(self) -> bool:
        """Whether proposals are uniform."""
        return self._journal.start == 1 and self._steps_made < self.config.random_steps

    def _step(self, policy: ActorPolicy | None) -> None:
        """Makes one control step in all environments."""
        observation = self._observation
        vector = self._vector(observation)
        _check_finite(vector)

        # The policy proposes, the person may overrule, the environments execute.
        pictures = self._sent_pictures(observation) if self._pictures is None else self._pictures
        proposed, versions = self._propose(policy, vector, pictures, observation)
        intervention = self._operator.intervene(
            self._actions.to_env(proposed, observation), observation
        )
        corrected = self._actions.from_env(intervention.executed, observation)
        executed = np.where(intervention.intervening[:, None], corrected, proposed)
        executed = executed.astype(np.float32)
        toggle = self._actions.toggled(executed, observation)
        monitored: Mapping[str, np.ndarray] = {}
        if self._monitor is not None:
            acting = intervention.intervening
            monitored = self._monitor(policy, vector, pictures, proposed, acting)
        step = self._env.step(intervention.executed)

        # Reward and end, by the environment or a classifier, and by the person's label.
        label = self._label
        self._label = Label.NONE
        ended = step.terminated | step.truncated
        verdict = _labelled(self._rewards.judge(step), label)
        last = ended | verdict.terminated | (label != Label.NONE)

        # The steps of environments that moved go into the journal.
        n = len(vector)
        next_pictures = self._sent_pictures(step.final_observation)
        steps = Steps(
            episode=self._episode.copy(),
            number=self._number.copy(),
            observation=vector,
            action=executed,
            reward=verdict.reward.astype(np.float32),
            next_observation=self._vector(step.final_observation),
            terminated=verdict.terminated,
            truncated=last & ~verdict.terminated,
            intervention=intervention.intervening.copy(),
            demo=np.zeros(n, bool),
            proposed=proposed,
            toggle=toggle,
            policy_version=versions,
            pictures=pictures,
            next_pictures=next_pictures,
        )
        moved = step.executed > 0
        steps = steps if moved.all() else select_steps(steps, moved)
        if steps.rows:
            self._pending.append(steps)
        if last.any() or len(self._pending) >= self.config.commit_every:
            self._commit()
        self._steps_made += 1
        self._number += moved

        # Displays and recorders see the step before a new episode begins.
        actor_step = ActorStep(
            observation,
            intervention,
            step,
            verdict,
            label,
            steps,
            last,
            self._episode.copy(),
            monitored,
        )
        self._observation = step.observation
        self._pictures = None if last.any() else next_pictures
        self._watch(actor_step)
        if last.any():
            self._begin_next(last, ended, label)

    def _sent_pictures(self, observation: Observation) -> Mapping[str, np.ndarray]:
        """Images of an observation, or what the encoder makes of them."""
        if self._encode is not None:
            return self._encode(observation)
        return {name: observation[name] for name in self.config.pictures}

    def _propose(
        self,
        policy: ActorPolicy | None,
        vector: np.ndarray,
        pictures: Mapping[str, np.ndarray],
        observation: Observation,
    ) -> tuple[np.ndarray, np.ndarray]:
        """(N, A) proposed actions, and (N,) the version of their policy; -1 for uniform actions,
        `GUIDE_VERSION` for those of a guide."""
        proposed, version = self._explore(policy, vector, pictures, observation)
        versions = np.full(len(vector), version, np.int64)
        if self._guide is None:
            return proposed, versions
        proposed, guided = self._guide.propose(self._episode, self._number, observation, proposed)
        return proposed.astype(np.float32), np.where(guided, GUIDE_VERSION, versions)

    def _explore(
        self,
        policy: ActorPolicy | None,
        vector: np.ndarray,
        pictures: Mapping[str, np.ndarray],
        observation: Observation,
    ) -> tuple[np.ndarray, int]:
        """(N, A) actions of the learner, and the version of their policy; -1 for uniform
        actions."""
        rng = np.random.default_rng(
            [self.config.seed, self._journal.start, ActorStream.EXPLORATION, self._steps_made]
        )
        actions = self._actions
        if policy is None or self._explores():
            uniform = rng.uniform(-1.0, 1.0, (len(vector), actions.size)).astype(np.float32)
            # Mapped to the environment and back, so that the gripper's entry is one of its
            # commands.
            env_action = actions.to_env(uniform, observation)
            return actions.from_env(env_action, observation).astype(np.float32), -1
        if (policy.card.observation, policy.card.action) != (vector.shape[1], actions.size):
            raise HandoffError(
                f"actor: policy {policy.version} has {policy.card.observation} observation and {policy.card.action} "
                f"action entries, this robot {vector.shape[1]} and {actions.size}. Does the learner train "
                "another task?"
            )
        missing = sorted({camera.field for camera in policy.card.maps} - set(pictures))
        if missing:
            raise HandoffError(
                f"actor: policy {policy.version} reads feature maps of {missing}, this robot has {sorted(pictures)}. "
                "Are actor.pictures those of the learner?"
            )
        action = policy.act(vector, None if self.config.deterministic else rng, pictures)
        return action, policy.version

    def _commit(self) -> None:
        """Writes the pending steps to the journal."""
        pending = self._pending
        self._pending = []
        if pending:
            self._journal.append(concatenate_steps(pending))

    def _begin_all(self) -> None:
        """Resets all environments."""
        rows = np.arange(self._env.num_envs)
        self._observation = self._env.reset([self._seed() for _ in rows])
        self._begin(rows)

    def _begin_next(self, last: np.ndarray, ended: np.ndarray, label: Label) -> None:
        """Begins new episodes where the last one ended.

        Environments that ended by themselves have reset themselves; those whose episode a
        classifier or a person ended are reset here.
        """
        running = np.flatnonzero(last & ~ended)
        if label == Label.REDO and self._starts is not None:
            seeds = self._starts()
            self._observation = self._env.reset(
                [int(seeds[row]) for row in running], running.tolist()
            )
        elif len(running):
            self._observation = self._env.reset([self._seed() for _ in running], running.tolist())
        self._begin(np.flatnonzero(last))

    def _begin(self, rows: np.ndarray) -> None:
        """Numbers the new episodes of the environments `rows`, and resets operator and rewards."""
        for row in rows:
            if self._episodes_begun >= EPISODES_PER_START:
                raise HandoffError(
                    f"actor: {self._episodes_begun} episodes, the limit of one start. Start it again."
                )
            self._episode[row] = self._journal.start * EPISODES_PER_START + self._episodes_begun
            self._episodes_begun += 1
        self._number[rows] = 0
        seeds = self._episode[rows] if self._starts is None else self._starts()[rows]
        self._operator.reset([int(seed) for seed in seeds], rows.tolist())
        self._rewards.reset(rows)

    def _seed(self) -> int:
        """Seed of the next episode's start."""
        self._seeds_drawn += 1
        key = [self.config.seed, self._journal.start, ActorStream.EPISODE_SEED, self._seeds_drawn]
        return int(np.random.SeedSequence(key).generate_state(1)[0] & 0x7FFFFFFF)


def _check_finite(vector: np.ndarray) -> None:
    if not np.isfinite(vector).all():
        row, entry = np.argwhere(~np.isfinite(vector))[0]
        raise HandoffError(
            f"actor: entry {entry} of the observation of environment {row} is {vector[row, entry]}, expected a finite "
            "number. No action is executed; was a sensor lost?"
        )


def _labelled(verdict: Verdict, label: Label) -> Verdict:
    """The verdict with a person's label, which overrides the reward source and counts for all
    environments."""
    if label in (Label.SUCCESS, Label.FAILURE):
        success = np.full(len(verdict.success), label == Label.SUCCESS)
        return Verdict(
            success.astype(np.float32), success, np.ones_like(success), verdict.probability
        )
    if label in (Label.REDO, Label.DISCARD):
        none = np.zeros(len(verdict.success), bool)
        return Verdict(verdict.reward, none, none, verdict.probability)
    return verdict
