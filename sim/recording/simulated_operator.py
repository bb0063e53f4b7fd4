"""Simulates an operator who watches N environments and intervenes, for human-in-the-loop learning
without a human.

Rules for interventions, as simulated in the literature:
- `value_gap` is RLIF's reference-based rule (Luo et al., arXiv 2311.12996): with a reference Q,
  intervene with probability 0.95 where Q(s, policy's action) < 0.97 Q(s, expert's action),
  otherwise with 0.05. Implemented as a gap of 3 % of |Q(s, expert's action)|, which is equivalent
  for Q > 0 and remains meaningful for Q < 0.
- `random` is RLIF's other rule: intervene with a fixed probability at every step.
- `failure` models an operator in HIL-SERL (arXiv 2410.21845) or HG-DAgger: intervene if the task
  stalls (its dense reward has not risen for a while) and the policy's mean action differs from the
  expert's, or if the policy's actions differ strongly from the expert's at every step for a while.
- `always` and `never` are the limiting cases.
Our additions: a reaction time between cause and takeover, and actions that are biased, noisy, slow
and sometimes wrong. The operator acts through the task's scripted expert; errors are added to the
expert's target pose [m, rad], so they are independent of the action space.

Every environment has its own random stream, keyed by its episode's seed, so interventions do not
depend on N.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import numpy as np

from robots.config import Delay, Finite, NonNegative, PositiveShare, Share, config
from robots.errors import HandoffError
from robots.interfaces import Intervention, Observation, Reason, Requests
from robots.spec import ActionSpec
from sim.episode_streams import EpisodeStream
from sim.scene.view import View
from sim.tasks.task import CLOSED, ExpertTarget, Task

Vector6 = tuple[Finite, Finite, Finite, Finite, Finite, Finite]

Value = Callable[[Observation, np.ndarray], np.ndarray]
"""Reference Q: observation (N, ...) and action (N, A) -> (N,)."""


class OperatedEngine(Protocol):
    """An engine with a scripted expert, such as `sim.engines.arm_engine.ArmEngine`."""

    task: Task
    num_envs: int
    rate_hz: float
    action_spec: ActionSpec

    @property
    def view(self) -> View:
        """The current state."""
        ...

    def to_action(self, target: ExpertTarget) -> np.ndarray:
        """(N, A) the action closest to an expert's target."""
        ...


@config
class OperatorConfig:
    """Behaviour of one operator."""

    name: str = "simulated"
    """Name of the operator in recordings."""
    policy: Literal["never", "always", "random", "value_gap", "failure"] = "failure"
    """Rule for interventions, see the module's docstring."""
    reaction_time: tuple[Delay, Delay] = (0.2, 0.5)
    """Minimum and maximum time from cause to takeover [s], drawn per event, rounded to control
    periods."""
    hold_time: tuple[Delay, Delay] = (0.5, 1.0)
    """Bounds of an intervention's minimum duration [s], which is drawn per event and at least one
    control period."""
    hand_back: Literal["after_hold", "when_recovered"] = "after_hold"
    """Condition for returning control: the hold time is over (RLIF, HIL-SERL), or the hold time is
    over and the cause is gone (HG-DAgger)."""
    skill: Share = 1.0
    """Skill of the operator: 1 acts like the scripted expert, 0 with the full `noise`, `slip` and
    `slowest`; linear in between."""
    noise: Vector6 = (0.03, 0.03, 0.03, 0.2, 0.2, 0.2)
    """Standard deviation of the target pose at skill 0 [m, rad], drawn at every step."""
    slip: Share = 0.3
    """Probability per step at skill 0 of a wrong action: a pose at distance `slip_size` and the
    opposite opening of the gripper."""
    slip_size: NonNegative = 0.15
    """Distance of a wrong action's pose [m]."""
    slowest: PositiveShare = 0.3
    """Speed at skill 0, as a fraction of the expert's."""
    bias: Vector6 = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    """Constant offset of the target pose [m, rad] at any skill."""
    rate: Share = 0.3
    """Probability per step of deciding to intervene, for `random`."""
    gap: NonNegative = 0.03
    """Fraction of the expert's value by which the policy's action must be worse, for `value_gap`;
    RLIF: 0.01 to 0.03."""
    gap_probability: Share = 0.95
    """Probability per step of deciding to intervene if the action is worse, for `value_gap`."""
    idle_probability: Share = 0.05
    """Probability per step of deciding to intervene otherwise, for `value_gap`."""
    patience: Delay = 0.5
    """Time without progress, or with disagreement, after which the task counts as failing [s], for
    `failure`."""
    progress: Finite = 0.005
    """Increase of the dense reward that counts as progress, for `failure`."""
    disagreement: NonNegative = 0.4
    """Root mean square difference between the actions of policy and expert that counts as
    disagreement, in halves of each entry's range, or in rad for joint positions, for `failure`."""
    agreement: NonNegative = 0.05
    """Difference between the mean actions of policy and expert over the patience, in the unit of
    `disagreement`, up to which a stall is ignored because the expert waits, too, for example while
    the gripper closes, for `failure`. The mean is used because an operator perceives the motion,
    not its noise; 0 ignores a stall only if both act identically."""


class SimulatedOperator:
    """One operator who watches N environments. A `robots.interfaces.Operator`."""

    def __init__(
        self,
        engine: OperatedEngine,
        config: OperatorConfig | None = None,
        value: Value | None = None,
    ) -> None:
        """Starts to watch `engine`.

        Args:
            engine: the environments, which are read by `intervene` but never stepped.
            config: behaviour of the operator.
            value: reference Q, required by the policy `value_gap`.

        Raises:
            HandoffError: probabilities or skill outside 0..1, invalid intervals, or `value_gap`
                without a reference Q.
        """
        self.config = config or OperatorConfig()
        self._check(value)
        self._engine = engine
        self._value = value
        n = engine.num_envs
        self.attention = 1.0
        """Probability per step of noticing a cause; decrease it during training to simulate growing
        trust in the policy."""
        self._rng = [np.random.default_rng([0, EpisodeStream.OPERATOR]) for _ in range(n)]
        self._ready = np.zeros(n, dtype=bool)
        self._countdown = np.full(n, -1)
        self._hold = np.zeros(n, dtype=np.int64)
        self._holding = np.zeros(n, dtype=bool)
        self._segment = np.full(n, -1)
        self._reason = np.zeros(n, dtype=np.int64)
        self._best = np.full(n, -np.inf)
        self._stalled = np.zeros(n, dtype=np.int64)
        self._disagreeing = np.zeros(n, dtype=np.int64)
        self._limit = max(1, round(self.config.patience * engine.rate_hz))
        self._recent = np.zeros((2, self._limit, n, engine.action_spec.size))
        """Actions of policy and expert in the last steps, for the time of `patience`."""

    def reset(
        self, seeds: Sequence[int] | np.ndarray, env_ids: Sequence[int] | np.ndarray | None = None
    ) -> None:
        """Starts a new episode in `env_ids` (all by default) from `seeds`; must be called after
        every reset, including automatic ones.

        Raises:
            HandoffError: the number of seeds differs from that of the environments, or a seed is
                negative.
        """
        rows = (
            np.arange(self._engine.num_envs)
            if env_ids is None
            else np.asarray(env_ids, dtype=np.int64)
        )
        keys = np.asarray(seeds, dtype=np.int64)
        if keys.shape != rows.shape or (keys < 0).any():
            raise HandoffError(
                f"operator: seeds {keys.tolist()[:8]} for {len(rows)} environments, expected one seed >= 0 "
                "per environment."
            )
        for row, seed in zip(rows.tolist(), keys.tolist(), strict=True):
            self._rng[row] = np.random.default_rng([seed, EpisodeStream.OPERATOR])
        self._ready[rows] = True
        self._countdown[rows], self._segment[rows] = -1, -1
        self._hold[rows] = 0
        self._reason[rows] = 0
        self._stalled[rows] = 0
        self._disagreeing[rows] = 0
        self._holding[rows] = False
        self._best[rows] = -np.inf

    def intervene(
        self, proposed: np.ndarray, observation: Observation | None = None
    ) -> Intervention:
        """Decides for every environment whether policy or operator acts; must be called once per
        step.

        Args:
            proposed: (N, A) the policy's actions.
            observation: observation of all environments, only used by the reference Q.

        Returns:
            The intervention, whose `executed` are the actions for the environments.

        Raises:
            HandoffError: before the first reset, actions of another shape, or no observation for
                the reference Q.
        """
        proposed = np.asarray(proposed, dtype=np.float64)
        n, size = self._engine.num_envs, self._engine.action_spec.size
        if not self._ready.all():
            raise HandoffError(
                "operator: intervene was called before the first reset. Call reset(seeds) when the environments are "
                "reset."
            )
        if proposed.shape != (n, size):
            raise HandoffError(
                f"operator: proposed actions of shape {proposed.shape}, expected ({n}, {size})."
            )
        # The same number of draws in every step keeps a stream independent of earlier decisions.
        uniform = np.stack([rng.random(6) for rng in self._rng])
        normal = np.stack([rng.standard_normal(9) for rng in self._rng])
        # Cause of an intervention, decision, and the operator's action.
        view, task = self._engine.view, self._engine.task
        target = task.expert(view)
        cause = self._cause(proposed, self._engine.to_action(target), view, observation, uniform)
        self._decide(cause, uniform)
        action = self._engine.to_action(self._with_errors(target, uniform, normal))
        return Intervention(
            proposed=proposed,
            executed=np.where(self._holding[:, None], action, proposed),
            intervening=self._holding.copy(),
            segment=np.where(self._holding, self._segment, -1),
            reason=np.where(self._holding, self._reason, int(Reason.NONE)),
            operator=self.config.name,
            device="simulated",
        )

    def requests(self) -> Requests:
        """See `robots.interfaces.Operator`: no requests, because the environments report success
        themselves."""
        return Requests()

    def status(self) -> str:
        """See `robots.interfaces.Operator`."""
        return "operator" if self._holding.any() else "policy"

    def close(self) -> None:
        """See `robots.interfaces.Operator`; there is no device."""

    def _decide(self, cause: np.ndarray, uniform: np.ndarray) -> None:
        """Advances every environment's state by one step: watching, reacting or intervening."""
        config, rate = self.config, self._engine.rate_hz
        held = self._holding.copy()
        self._hold -= held
        # Interventions that end in this step.
        released = held & (self._hold <= 0)
        if config.policy == "always":
            released[:] = False
        elif config.hand_back == "when_recovered":
            released &= cause == Reason.NONE
        self._holding &= ~released
        # After returning control the operator observes the policy before judging it again.
        self._best[released] = -np.inf
        self._stalled[released] = 0
        self._disagreeing[released] = 0
        cause = np.where(released, int(Reason.NONE), cause)
        # Causes that are noticed start the reaction time.
        waiting = self._countdown > 0
        self._countdown -= waiting
        noticed = (
            ~held
            & (self._countdown < 0)
            & (cause != Reason.NONE)
            & (uniform[:, 1] < self.attention)
        )
        self._reason[noticed] = cause[noticed]
        self._countdown[noticed] = _periods(config.reaction_time, uniform[noticed, 2], rate)
        # Interventions that begin in this step.
        begins = ~held & (self._countdown == 0)
        self._countdown[begins] = -1
        self._holding |= begins
        self._segment += begins
        self._hold[begins] = np.maximum(1, _periods(config.hold_time, uniform[begins, 3], rate))

    def _cause(
        self,
        proposed: np.ndarray,
        expert: np.ndarray,
        view: View,
        observation: Observation | None,
        uniform: np.ndarray,
    ) -> np.ndarray:
        """(N,) int `Reason` to intervene in the current state."""
        config, n = self.config, len(proposed)
        none = np.zeros(n, dtype=np.int64)
        match config.policy:
            case "never":
                return none
            case "always":
                return none + Reason.ALWAYS
            case "random":
                return np.where(uniform[:, 0] < config.rate, Reason.RANDOM, none)
            case "value_gap":
                if observation is None or self._value is None:
                    raise HandoffError(
                        "operator: the policy 'value_gap' needs the observation at every step."
                    )
                best = self._value(observation, expert)
                worse = self._value(observation, proposed) < best - config.gap * np.abs(best)
                probability = np.where(worse, config.gap_probability, config.idle_probability)
                return np.where(uniform[:, 0] < probability, Reason.VALUE_GAP, none)
            case "failure":
                return self._failing(proposed, expert, view)

    def _failing(self, proposed: np.ndarray, expert: np.ndarray, view: View) -> np.ndarray:
        config = self.config
        reward = np.sum(
            [term.weight * term.read(view) for term in self._engine.task.rewards.values()], axis=0
        )
        # Steps since the last progress.
        better = reward > self._best + config.progress
        self._best[better] = reward[better]
        self._stalled = np.where(better, 0, self._stalled + 1)
        # Consecutive steps of disagreement, and the recent actions.
        spec, limit = self._engine.action_spec, self._limit
        disagrees = disagreement(spec, proposed, expert) > config.disagreement
        self._disagreeing = np.where(disagrees, self._disagreeing + 1, 0)
        self._recent = np.roll(self._recent, -1, axis=1)
        self._recent[:, -1] = proposed, expert
        fails = (self._stalled >= limit) & (
            disagreement(spec, *self._recent.mean(axis=1)) > config.agreement
        )
        stalled = np.where(fails, int(Reason.STALLED), int(Reason.NONE))
        cause = np.where(self._disagreeing >= limit, int(Reason.DISAGREES), stalled)
        # A solved task needs no intervention.
        return np.where(self._engine.task.success(view), int(Reason.NONE), cause)

    def _with_errors(
        self, target: ExpertTarget, uniform: np.ndarray, normal: np.ndarray
    ) -> ExpertTarget:
        """Adds the operator's bias, noise, wrong actions and slowness to the expert's target."""
        config = self.config
        lack = 1.0 - config.skill
        pose = target.pose + np.array(config.bias) + lack * np.array(config.noise) * normal[:, :6]
        slips = uniform[:, 4] < lack * config.slip
        direction = normal[:, 6:] / np.linalg.norm(normal[:, 6:], axis=1, keepdims=True)
        pose[:, :3] += np.where(slips[:, None], config.slip_size * direction, 0.0)
        opened = self._engine.task.robot.gripper.width_max
        opposite = np.where(target.width > 0.5 * (opened + CLOSED), CLOSED, opened)
        speed = np.asarray(target.speed) * (config.slowest + (1.0 - config.slowest) * config.skill)
        return ExpertTarget(pose=pose, width=np.where(slips, opposite, target.width), speed=speed)

    def _check(self, value: Value | None) -> None:
        config = self.config
        fractions = ("skill", "slip", "slowest", "rate", "gap_probability", "idle_probability")
        for name in fractions:
            if not 0.0 <= getattr(config, name) <= 1.0:
                raise HandoffError(f"operator: {name} is {getattr(config, name)}, expected 0 to 1.")
        for name in ("reaction_time", "hold_time"):
            low, high = getattr(config, name)
            if not 0.0 <= low <= high < float("inf"):
                raise HandoffError(
                    f"operator: {name} is [{low}, {high}] s, expected 0 <= minimum <= maximum."
                )
        if not 0.0 <= config.patience < float("inf"):
            raise HandoffError(
                f"operator: patience is {config.patience} s, expected a finite time >= 0. Use policy=never to never "
                "intervene."
            )
        if config.policy == "value_gap" and value is None:
            raise HandoffError(
                "operator: the policy 'value_gap' needs a reference Q, passed as `value`."
            )


def disagreement(spec: ActionSpec, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(N,) root mean square difference of actions (N, A).

    Entries are in halves of their range, so the maximum is 2. Joint positions, whose range does not
    reflect the task, and entries without bounds keep their unit.
    """
    low, high = np.array(spec.low), np.array(spec.high)
    if spec.unit != "rad" and np.isfinite(high - low).all():
        a, b = np.clip(a, low, high), np.clip(b, low, high)
        return np.sqrt(np.mean(((a - b) / (0.5 * (high - low))) ** 2, axis=1))
    return np.sqrt(np.mean((a - b) ** 2, axis=1))


def _periods(interval: tuple[float, float], fraction: np.ndarray, rate_hz: float) -> np.ndarray:
    """Control periods at `fraction` (0..1) between the ends of `interval` [s]."""
    low, high = interval
    return np.round((low + (high - low) * fraction) * rate_hz).astype(np.int64)
