"""A simulated person who watches N worlds and takes over: for human-in-the-loop learning without a
human.

When the person steps in, as the literature simulates it:
- `value_gap` is RLIF's reference-based rule (Luo et al., arXiv 2311.12996): with a reference Q,
  step in with probability 0.95 where Q(s, policy's action) < 0.97 Q(s, expert's action), else with
  0.05. Stated here as a gap of 3 % of |Q(s, expert's action)|, which is the same for Q > 0 and
  keeps its meaning for Q < 0.
- `random` is RLIF's other rule: with a fixed probability at every step.
- `failure` is what a person under HIL-SERL (arXiv 2410.21845) or HG-DAgger does, made computable:
  the task stalls (its dense reward has not risen for a while) and the policy on average does
  something else than the expert, or the policy keeps doing something quite different at every step.
- `always` and `never` are the ends.
Ours: a reaction time between cause and takeover, and a hand that is biased, noisy, slow and slips.
The person acts through the task's scripted expert; errors of the hand are added to the intended
pose [m, rad], so they mean the same in every action space.

Every world has its own random stream, keyed by its episode's seed, so interventions do not depend
on N.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import numpy as np

from robots.config import config
from robots.errors import HandoffError
from robots.interfaces import Intervention, Observation, Reason, Requests
from robots.spec import ActionSpec
from sim.episode_streams import EpisodeStream
from sim.scene.view import View
from sim.tasks.task import CLOSED, Intent, Task

Vector6 = tuple[float, float, float, float, float, float]

Value = Callable[[Observation, np.ndarray], np.ndarray]
"""Reference Q: observation (N, ...) and action (N, A) -> (N,)."""


class Demonstrated(Protocol):
    """Worlds with a scripted expert; `sim.engines.arm_engine.ArmEngine` is one."""

    task: Task
    num_envs: int
    rate_hz: float
    action_spec: ActionSpec

    @property
    def view(self) -> View:
        """The present."""
        ...

    def to_action(self, intent: Intent) -> np.ndarray:
        """(N, A) the action that comes nearest to an intent."""
        ...


@config
class OperatorConfig:
    """One person."""

    name: str = "simulated"
    """Name that is recorded as the person."""
    policy: Literal["never", "always", "random", "value_gap", "failure"] = "failure"
    """When they step in, see the module's text."""
    reaction_time: tuple[float, float] = (0.2, 0.5)
    """Shortest and longest time from cause to takeover [s], drawn per event, rounded to control
    periods."""
    hold_time: tuple[float, float] = (0.5, 1.0)
    """Shortest and longest least duration of a takeover [s], drawn per event, at least one control
    period."""
    hand_back: Literal["after_hold", "when_recovered"] = "after_hold"
    """Gives control back when the hold time is over (RLIF, HIL-SERL), or not before the cause is
    gone as well (HG-DAgger)."""
    skill: float = 1.0
    """1 acts as the scripted expert does; 0 has all of `noise`, `slip` and slowness below; linear
    in between."""
    noise: Vector6 = (0.03, 0.03, 0.03, 0.2, 0.2, 0.2)
    """Standard deviation of the intended pose at skill 0 [m, rad], new at every step."""
    slip: float = 0.3
    """Probability per step at skill 0 of a wrong action: a pose `slip_size` away and the opposite
    of the grip."""
    slip_size: float = 0.15
    """[m]."""
    slowest: float = 0.3
    """Speed at skill 0, as a share of the expert's."""
    bias: Vector6 = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    """Constant offset of the intended pose [m, rad], whatever the skill."""
    rate: float = 0.3
    """`random`: probability per step of deciding to step in."""
    gap: float = 0.03
    """`value_gap`: share of the expert's value by which the policy's action must be worse; RLIF:
    0.01 to 0.03."""
    gap_probability: float = 0.95
    """`value_gap`: probability per step of deciding to step in when it is."""
    idle_probability: float = 0.05
    """`value_gap`: probability per step when it is not."""
    patience: float = 0.5
    """`failure`: time without progress, or of disagreement, from which on the task counts as
    failing [s]."""
    progress: float = 0.005
    """`failure`: rise of the dense reward that counts as progress."""
    disagreement: float = 0.4
    """`failure`: root mean square difference between the actions of policy and expert that counts
    as disagreement, in halves of each entry's range, or in rad for joint positions."""
    agreement: float = 0.05
    """`failure`: difference, likewise, of both's mean actions in the time of patience, up to which
    a stall is nobody's
    fault: the expert waits too, as while a hand closes. A mean, because a person sees a motion and
    not its noise. 0 blames every stall but that of one who acts exactly alike."""


class SimulatedOperator:
    """The state of one person in front of N worlds."""

    def __init__(
        self, engine: Demonstrated, config: OperatorConfig | None = None, value: Value | None = None
    ) -> None:
        """Watches `engine`.

        Args:
            engine: the worlds; read when `intervene` is called, never stepped.
            config: the person.
            value: reference Q; needed by the policy `value_gap`.

        Raises:
            HandoffError: probabilities or skill outside 0..1, intervals that are not, or a value
                gap without a value.
        """
        self.config = config or OperatorConfig()
        self._check(value)
        self._engine = engine
        self._value = value
        n = engine.num_envs
        self.attention = 1.0
        """Probability that a cause is noticed at a step; lower it as training goes on for a person
        who trusts the policy more and more."""
        self._rng = [np.random.default_rng([0, EpisodeStream.OPERATOR]) for _ in range(n)]
        self._ready = np.zeros(n, dtype=bool)
        self._countdown = np.full(n, -1)
        self._hold = np.zeros(n, dtype=np.int64)
        self._holding = np.zeros(n, dtype=bool)
        self._segment = np.full(n, -1)
        self._reason = np.zeros(n, dtype=np.int64)
        self._best = np.full(n, -np.inf)
        self._stalled = np.zeros(n, dtype=np.int64)
        self._apart = np.zeros(n, dtype=np.int64)
        self._limit = max(1, round(self.config.patience * engine.rate_hz))
        self._seen = np.zeros((2, self._limit, n, engine.action_spec.size))
        """Actions of policy and expert in the last steps, as many as patience lasts."""

    def reset(
        self, seeds: Sequence[int] | np.ndarray, worlds: Sequence[int] | np.ndarray | None = None
    ) -> None:
        """A new episode begins in `worlds` (all by default), from `seeds`; call it after every
        reset, automatic or not.

        Raises:
            HandoffError: not one seed >= 0 per world.
        """
        rows = (
            np.arange(self._engine.num_envs)
            if worlds is None
            else np.asarray(worlds, dtype=np.int64)
        )
        keys = np.asarray(seeds, dtype=np.int64)
        if keys.shape != rows.shape or (keys < 0).any():
            raise HandoffError(
                f"operator: seeds {keys.tolist()[:8]} for {len(rows)} worlds, expected one seed >= 0 per world."
            )
        for row, seed in zip(rows.tolist(), keys.tolist(), strict=True):
            self._rng[row] = np.random.default_rng([seed, EpisodeStream.OPERATOR])
        self._ready[rows] = True
        self._countdown[rows], self._segment[rows] = -1, -1
        self._hold[rows] = self._reason[rows] = self._stalled[rows] = self._apart[rows] = 0
        self._holding[rows] = False
        self._best[rows] = -np.inf

    def intervene(
        self, proposed: np.ndarray, observation: Observation | None = None
    ) -> Intervention:
        """Decides for every world who acts at this step; call it once per step.

        Args:
            proposed: (N, A) the policy's actions.
            observation: of all worlds; only handed to the reference Q.

        Returns:
            `executed` is what the worlds should be stepped with.

        Raises:
            HandoffError: before the first reset, another shape than (N, A), or no observation for
                the reference Q.
        """
        proposed = np.asarray(proposed, dtype=np.float64)
        n, size = self._engine.num_envs, self._engine.action_spec.size
        if not self._ready.all():
            raise HandoffError(
                "operator: asked before its first reset. Call reset(seeds) when the worlds are reset."
            )
        if proposed.shape != (n, size):
            raise HandoffError(
                f"operator: proposed actions of shape {proposed.shape}, expected ({n}, {size})."
            )
        # As many numbers per step whatever happens, or a stream would depend on what was decided
        # before.
        uniform = np.stack([rng.random(6) for rng in self._rng])
        normal = np.stack([rng.standard_normal(9) for rng in self._rng])
        view, task = self._engine.view, self._engine.task
        intent = task.expert(view)
        cause = self._cause(proposed, self._engine.to_action(intent), view, observation, uniform)
        self._decide(cause, uniform)
        own = self._engine.to_action(self._hand(intent, uniform, normal))
        return Intervention(
            proposed=proposed,
            executed=np.where(self._holding[:, None], own, proposed),
            intervening=self._holding.copy(),
            segment=np.where(self._holding, self._segment, -1),
            reason=np.where(self._holding, self._reason, int(Reason.NONE)),
            operator=self.config.name,
            device="simulated",
        )

    def requests(self) -> Requests:
        """See `robots.interfaces.Operator`: nothing; whether an episode succeeded the worlds tell
        by themselves."""
        return Requests()

    def status(self) -> str:
        """See `robots.interfaces.Operator`."""
        return "operator" if self._holding.any() else "policy"

    def close(self) -> None:
        """See `robots.interfaces.Operator`; there is no device."""

    def _decide(self, cause: np.ndarray, uniform: np.ndarray) -> None:
        """Moves every world's state by one step: watching, reacting, holding."""
        config, rate = self.config, self._engine.rate_hz
        held = self._holding.copy()
        self._hold -= held
        over = held & (self._hold <= 0)
        if config.policy == "always":
            over[:] = False
        elif config.hand_back == "when_recovered":
            over &= cause == Reason.NONE
        self._holding &= ~over
        # Who has just given the arm back watches what the policy does with it before judging it
        # anew.
        self._best[over] = -np.inf
        self._stalled[over] = self._apart[over] = 0
        cause = np.where(over, int(Reason.NONE), cause)
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
        """(N,) int `Reason` to step in that there is now."""
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
        better = reward > self._best + config.progress
        self._best[better] = reward[better]
        self._stalled = np.where(better, 0, self._stalled + 1)
        spec, limit = self._engine.action_spec, self._limit
        apart = disagreement(spec, proposed, expert) > config.disagreement
        self._apart = np.where(apart, self._apart + 1, 0)
        self._seen = np.roll(self._seen, -1, axis=1)
        self._seen[:, -1] = proposed, expert
        fails = (self._stalled >= limit) & (
            disagreement(spec, *self._seen.mean(axis=1)) > config.agreement
        )
        stalled = np.where(fails, int(Reason.STALLED), int(Reason.NONE))
        cause = np.where(self._apart >= limit, int(Reason.DISAGREES), stalled)
        # A solved task needs nobody.
        return np.where(self._engine.task.success(view), int(Reason.NONE), cause)

    def _hand(self, intent: Intent, uniform: np.ndarray, normal: np.ndarray) -> Intent:
        """The expert's intent as this person's hand carries it out."""
        config = self.config
        lack = 1.0 - config.skill
        pose = intent.pose + np.array(config.bias) + lack * np.array(config.noise) * normal[:, :6]
        slips = uniform[:, 4] < lack * config.slip
        way = normal[:, 6:] / np.linalg.norm(normal[:, 6:], axis=1, keepdims=True)
        pose[:, :3] += np.where(slips[:, None], config.slip_size * way, 0.0)
        opened = self._engine.task.robot.gripper.width_max
        opposite = np.where(intent.width > 0.5 * (opened + CLOSED), CLOSED, opened)
        speed = np.asarray(intent.speed) * (config.slowest + (1.0 - config.slowest) * config.skill)
        return Intent(pose=pose, width=np.where(slips, opposite, intent.width), speed=speed)

    def _check(self, value: Value | None) -> None:
        config = self.config
        shares = ("skill", "slip", "slowest", "rate", "gap_probability", "idle_probability")
        for name in shares:
            if not 0.0 <= getattr(config, name) <= 1.0:
                raise HandoffError(f"operator: {name} is {getattr(config, name)}, expected 0 to 1.")
        for name in ("reaction_time", "hold_time"):
            low, high = getattr(config, name)
            if not 0.0 <= low <= high < float("inf"):
                raise HandoffError(
                    f"operator: {name} is [{low}, {high}] s, expected 0 <= shortest <= longest."
                )
        if not 0.0 <= config.patience < float("inf"):
            raise HandoffError(
                f"operator: patience is {config.patience} s, expected a time >= 0; never to step in is policy=never."
            )
        if config.policy == "value_gap" and value is None:
            raise HandoffError(
                "operator: the policy 'value_gap' needs a reference Q, given as `value`."
            )


def disagreement(spec: ActionSpec, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(N,) root mean square difference of actions (N, A).

    In halves of an entry's range, so 2 is the most. Joint positions, whose range says nothing about
    a task, and entries without bounds count as they are.
    """
    low, high = np.array(spec.low), np.array(spec.high)
    if spec.unit != "rad" and np.isfinite(high - low).all():
        a, b = np.clip(a, low, high), np.clip(b, low, high)
        return np.sqrt(np.mean(((a - b) / (0.5 * (high - low))) ** 2, axis=1))
    return np.sqrt(np.mean((a - b) ** 2, axis=1))


def _periods(interval: tuple[float, float], share: np.ndarray, rate_hz: float) -> np.ndarray:
    """Control periods, each a draw between the ends of `interval` [s]."""
    low, high = interval
    return np.round((low + (high - low) * share) * rate_hz).astype(np.int64)
