"""Defines the protocols between policies, environments, operators and hardware."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from robots.spec import ActionSpec, FieldSpec

Observation = dict[str, np.ndarray]
"""Named arrays; a `FieldSpec` per name states shape, unit and frame."""


class Progress(Protocol):
    """Callback by which long-running work reports its progress. It throttles its own output, so it
    may be called every step."""

    def __call__(self, done: int, total: int, note: str = "") -> None:
        """Reports that `done` of `total` units are finished; `note` is a short phrase such as
        `loss 0.021`."""
        ...


def no_progress(done: int, total: int, note: str = "") -> None:
    """A `Progress` that ignores all reports."""


class PolicyInput(NamedTuple):
    """Input of a policy with sensors, instructions or a goal beside the observation vector."""

    vector: np.ndarray
    """`(B, n_obs_steps, O)` in the contract's units, newest step last."""
    sensors: Mapping[str, np.ndarray] = {}
    """Per camera `(B, n_obs_steps, height, width, 3)` uint8, per point cloud
    `(B, n_obs_steps, points, entries)`."""
    instructions: tuple[str, ...] = ()
    """B instructions; empty if the policy is not language-conditioned."""
    goal: np.ndarray | None = None
    """`(B, O)` observation vector of the goal state; None if the policy takes no separate goal."""
    prefix: np.ndarray | None = None
    """`(B, P, A + 1)` actions in the contract's units that are decided already, the newest observed
    step's first, each followed by 1, and rows of zeros behind them, for a policy whose contract has
    `prefix` P. None decides nothing."""


class Policy(Protocol):
    """A policy with fixed weights, whose chunk is a pure function of observation and noise."""

    def __call__(self, observation: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Predicts one chunk per row.

        Args:
            observation: `(B, n_obs_steps, O)` in the contract's units, newest step last.
            noise: `(B, horizon, A)` standard normal.

        Returns:
            `(B, horizon, A)` actions in the contract's units; entry `n_obs_steps - 1` belongs to
            the newest step.
        """
        ...


class MultimodalPolicy(Protocol):
    """A `Policy` that also takes images, point clouds and instructions."""

    def __call__(self, observation: np.ndarray | PolicyInput, noise: np.ndarray) -> np.ndarray:
        """Predicts one chunk per row; see `Policy`."""
        ...


class Step(NamedTuple):
    """Result of one action, or of one chunk of H actions, in each of N environments."""

    observation: Observation
    """Per field `(N, ...)`, after any automatic reset."""
    reward: np.ndarray
    """(N,), or (N, H) for a chunk; zero for actions that were not executed."""
    terminated: np.ndarray
    """(N,) bool: the task ended."""
    truncated: np.ndarray
    """(N,) bool: the time limit ended it."""
    final_observation: Observation
    """Per field `(N, ...)`: the true observation after the last executed action, before any
    automatic reset."""
    info: dict[str, np.ndarray]
    """Named diagnostics, each `(N, ...)`, after the last executed action; `success` (N,) bool is
    always present. `cost` (N,), where the environments have one, is the sum over the executed
    actions."""
    executed: np.ndarray
    """(N,) int: number of executed actions. An environment that ends within a chunk skips the rest
    of it; a frozen one executes 0."""


EnvState = dict[str, np.ndarray]
"""Complete state of N environments, per field `(N, ...)`; opaque, but rows may be selected and
repeated."""


class VecEnv(Protocol):
    """N environments stepped together. The trajectory of an environment depends only on its seed
    and actions, not on the other environments."""

    num_envs: int
    observation_spec: Mapping[str, FieldSpec]
    action_spec: ActionSpec
    rate_hz: float
    """Actions per second of simulated time."""

    def reset(self, seeds: Sequence[int], env_ids: Sequence[int] | None = None) -> Observation:
        """Resets `env_ids` (all by default), each with its own seed; the same seed gives the same
        initial state in any environment.

        Returns:
            Observation of all N environments.
        """
        ...

    def step(self, action: np.ndarray) -> Step:
        """Executes one action `(N, A)`, or one chunk `(N, H, A)`, in every environment.

        A chunk has the same effect as its actions one after another, except that an environment
        that ends stays frozen until the end of the chunk. The environment's configuration decides
        whether it then resets itself or stays frozen.

        Raises:
            HandoffError: wrong shape, or a non-finite action for an environment that is running.
        """
        ...

    def save(self) -> EnvState:
        """The states of all environments, for `restore`.

        Raises:
            HandoffError: the engine cannot save its state.
        """
        ...

    def restore(self, state: EnvState, env_ids: Sequence[int] | None = None) -> Observation:
        """Sets the environment `env_ids[i]` (all by default) to row i of `state`; it then continues
        as the saved environment would have.

        Returns:
            Observation of all N environments.
        """
        ...

    def close(self) -> None:
        """Closes processes and windows."""
        ...


class SplitSteps(NamedTuple):
    """Results of the actions that were sent to a `SplitVecEnv`."""

    steps: list[Step]
    """One result per action or chunk."""
    reset_observation: Observation | None
    """Observation of all environments after those that ended were reset with `starts`; None if none
    was reset."""


@runtime_checkable
class SplitVecEnv(VecEnv, Protocol):
    """A `VecEnv` with asynchronous steps, split into parts that are stepped independently.

    The simulation of one part can then overlap with inference for another.
    """

    parts: Sequence[SplitVecEnv]
    """The parts, which contain the environments in order; an unsplit one has itself as its only
    part."""
    accepts_starts: bool
    """Whether `send` takes `starts`."""

    def send(self, actions: Sequence[np.ndarray], starts: Sequence[int] | None = None) -> None:
        """Starts all environments on a sequence of actions or chunks; `receive` returns the
        results.

        Args:
            actions: each `(N, A)` or `(N, H, A)`.
            starts: seeds with which environments that end reset themselves, in the order of use:
                the seeds that follow those known to be used, one for every running environment
                of all parts.

        Raises:
            HandoffError: wrong shape, the environments are still running, or `starts` are not
                supported.
        """
        ...

    def receive(self) -> SplitSteps:
        """Waits for the results of the actions that were sent.

        Raises:
            HandoffError: the error that the environments raised.
        """
        ...

    def discard(self) -> None:
        """Waits for results that were not received, and drops them."""
        ...


class Reason(IntEnum):
    """Why the person controls the arm."""

    NONE = 0
    """The person does not control the arm."""
    ALWAYS = 1
    RANDOM = 2
    VALUE_GAP = 3
    STALLED = 4
    """The dense reward has not risen for a while."""
    DISAGREES = 5
    """The policy has been far from the expert's action for a while."""
    PERSON = 6
    """A real person, who gives no reason; all other reasons are those of simulated persons."""


class Intervention(NamedTuple):
    """Proposed and executed actions of one step of N environments."""

    proposed: np.ndarray
    """(N, A) the policy's action."""
    executed: np.ndarray
    """(N, A) the action to execute: the person's where they intervene, otherwise the policy's."""
    intervening: np.ndarray
    """(N,) bool: the person intervenes."""
    segment: np.ndarray
    """(N,) int: number of the takeover within its episode, from 0; -1 without one."""
    reason: np.ndarray
    """(N,) int, see `Reason`."""
    operator: str
    """Name of the person."""
    device: str
    """Name of the input device; `simulated` for a simulated person."""


class Label(IntEnum):
    """A person's label of the running episode; all but `NONE` end it."""

    NONE = 0
    SUCCESS = 1
    FAILURE = 2
    REDO = 3
    """Drop the episode, and repeat it from the same initial state."""
    DISCARD = 4
    """Drop the episode, and continue with the next initial state."""


class ResetMotion(IntEnum):
    """A motion of the arm between two episodes, for as long as a person asks for it."""

    NONE = 0
    HOME = 1
    """The session drives the arm to its start."""
    LIMP = 2
    """The arm yields to the hand that guides it."""


class Requests(NamedTuple):
    """A person's requests to a session, apart from motions of the arm during an episode."""

    label: Label = Label.NONE
    """Label given since the last call; the newest if there were several."""
    paused: bool = False
    """Whether the arm must hold its position until the person resumes."""
    stop: bool = False
    """Whether the session must end after this step; it can be continued later."""
    engaged: bool | None = None
    """Whether the person controls the arm, or will at the next step; None if the device does not
    report it between steps."""
    labelled_by: str = ""
    """Name of the person who gave the label; empty if it is not known."""
    reset_motion: ResetMotion = ResetMotion.NONE
    """Motion of the arm between two episodes that the person asks for; `paused` is set with it, so
    that nothing else moves the arm."""


class Operator(Protocol):
    """A person who can take over N environments by any device: keyboard, SpaceMouse, browser or
    script."""

    def reset(self, seeds: Sequence[int], env_ids: Sequence[int] | None = None) -> None:
        """Begins a new episode in `env_ids` (all by default), with `seeds`; called after every
        reset of the environments."""
        ...

    def intervene(self, proposed: np.ndarray, observation: Observation) -> Intervention:
        """Decides for every environment who acts at this step; called once per step.

        Args:
            proposed: (N, A) the policy's actions.
            observation: observation of all environments.

        Returns:
            The intervention; the environments are stepped with `executed`.
        """
        ...

    def requests(self) -> Requests:
        """The requests since the last call; called once per step, and regularly while paused."""
        ...

    def status(self) -> str:
        """One short line for a display: who controls the arm, and the last label."""
        ...

    def close(self) -> None:
        """Releases the device and restores the terminal."""
        ...


class Clock(Protocol):
    """Clock of robot time. On hardware, time passes by itself; in a lockstep twin, on request."""

    def now(self) -> float:
        """Robot time [s]."""
        ...

    def advance(self, seconds: float) -> float:
        """Lets robot time pass by `seconds` (a multiple of 1 ms), returns the new time [s].

        Raises:
            HandoffError: the robot does not answer any more.
        """
        ...
