"""The protocols through which learning, worlds and hardware meet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from robots.spec import ActionSpec, FieldSpec

Observation = dict[str, np.ndarray]
"""Named arrays; a `FieldSpec` per name states shape, unit and frame."""


class Progress(Protocol):
    """Where long work reports how far it is; callers throttle, so it may be called every step."""

    def __call__(self, done: int, total: int, note: str = "") -> None:
        """`done` of `total` units are finished; `note` is a short human phrase such as
        `loss 0.021`."""
        ...


def no_progress(done: int, total: int, note: str = "") -> None:
    """A `Progress` that says nothing."""


class PolicyInput(NamedTuple):
    """What a policy is shown that sees more than one vector."""

    vector: np.ndarray
    """`(B, n_obs_steps, O)` in the contract's units, newest step last."""
    sensors: Mapping[str, np.ndarray] = {}
    """Per camera `(B, n_obs_steps, height, width, 3)` uint8, per point cloud
    `(B, n_obs_steps, points, entries)`."""
    instructions: tuple[str, ...] = ()
    """B sentences that say what to do; empty where the policy takes none."""
    goal: np.ndarray | None = None
    """`(B, O)` observation vector of the state to be reached, where the policy is told one apart
    from `vector`."""


class Policy(Protocol):
    """A chunk is a pure function of observation and noise (the weights are fixed inside)."""

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


class SeeingPolicy(Protocol):
    """A `Policy` that can be shown pictures, point clouds and sentences as well."""

    def __call__(self, observation: np.ndarray | PolicyInput, noise: np.ndarray) -> np.ndarray:
        """Predicts one chunk per row; see `Policy`."""
        ...


class Step(NamedTuple):
    """What N worlds answer to one action, or to one chunk of H actions, each."""

    observation: Observation
    """Per field `(N, ...)`, after any automatic reset."""
    reward: np.ndarray
    """(N,), or (N, H) for a chunk: zero for actions that were not executed."""
    terminated: np.ndarray
    """(N,) bool: the task ended."""
    truncated: np.ndarray
    """(N,) bool: the time limit ended it."""
    final_observation: Observation
    """Per field `(N, ...)`: the true observation after the last executed action, before any
    automatic reset."""
    info: dict[str, np.ndarray]
    """Named diagnostics, each `(N, ...)`, after the last executed action; `success` (N,) bool is
    always among them."""
    executed: np.ndarray
    """(N,) int: actions executed. A world that ends within a chunk leaves the rest of it; a frozen
    one executes 0."""


WorldState = dict[str, np.ndarray]
"""All that the future of N worlds depends on, per field `(N, ...)`; opaque, but rows may be picked
and repeated."""


class VecEnv(Protocol):
    """N worlds stepped together. A world's trajectory depends on its seed and actions only, never
    on its neighbours."""

    num_envs: int
    observation_spec: Mapping[str, FieldSpec]
    action_spec: ActionSpec
    rate_hz: float
    """Actions per second of simulated time."""

    def reset(self, seeds: Sequence[int], worlds: Sequence[int] | None = None) -> Observation:
        """Starts `worlds` (all by default), each from its own seed; the same seed gives the same
        start in any world.

        Returns:
            Observation of all N worlds.
        """
        ...

    def step(self, action: np.ndarray) -> Step:
        """Executes one action `(N, A)`, or one chunk `(N, H, A)`, in every world.

        A chunk is exactly its actions one after another, except that a world which ends stays as it
        is until the chunk is over. Whether an ended world then starts anew or stays frozen is the
        world's configuration.

        Raises:
            HandoffError: wrong shape, or a non-finite action for a world that runs.
        """
        ...

    def save(self) -> WorldState:
        """The states of all worlds, for `restore`.

        Raises:
            HandoffError: this engine cannot.
        """
        ...

    def restore(self, state: WorldState, worlds: Sequence[int] | None = None) -> Observation:
        """Puts row i of `state` into world `worlds[i]` (all by default): its future is then that of
        the saved world.

        Returns:
            Observation of all N worlds.
        """
        ...

    def close(self) -> None:
        """Frees processes and windows."""
        ...


class SplitSteps(NamedTuple):
    """Outcome of the actions that were sent to a `SplitVecEnv`."""

    steps: list[Step]
    """One of every action or chunk."""
    begun: Observation | None
    """Observation of all environments, after some of them have ended and started anew from
    `starts`; None where none has."""


@runtime_checkable
class SplitVecEnv(VecEnv, Protocol):
    """A `VecEnv` whose step is sent and received apart, and whose parts are stepped apart.

    So simulation of one part overlaps with whatever its caller does meanwhile.
    """

    parts: Sequence[SplitVecEnv]
    """The same environments in order, each part for itself; an undivided one is its only part."""
    takes_starts: bool
    """Whether `send` takes `starts`."""

    def send(self, actions: Sequence[np.ndarray], starts: Sequence[int] | None = None) -> None:
        """Sets all environments going with several actions or chunks, one behind another; `receive`
        returns the outcome.

        Args:
            actions: each `(N, A)` or `(N, H, A)`.
            starts: seeds from which environments that end start anew by themselves: the next ones
                as far as it was received, enough for all environments that are under way in all
                parts.

        Raises:
            HandoffError: wrong shape, these environments are under way, or starts are not taken.
        """
        ...

    def receive(self) -> SplitSteps:
        """Waits for the outcome of what was sent.

        Raises:
            HandoffError: what the environments raised.
        """
        ...

    def discard(self) -> None:
        """Waits for the outcome of what was sent and not received, and forgets it."""
        ...


class Reason(IntEnum):
    """Why the person holds the arm."""

    NONE = 0
    """They do not."""
    ALWAYS = 1
    RANDOM = 2
    VALUE_GAP = 3
    STALLED = 4
    """The dense reward has not risen for a while."""
    DISAGREES = 5
    """The policy has been far from the expert's action for a while."""
    PERSON = 6
    """A person of flesh and blood, who need not say why."""


class Intervention(NamedTuple):
    """What happens to one step of N worlds."""

    proposed: np.ndarray
    """(N, A) the policy's action."""
    executed: np.ndarray
    """(N, A) the action to execute: the person's where they intervene, else the policy's,
    unchanged."""
    intervening: np.ndarray
    """(N,) bool."""
    segment: np.ndarray
    """(N,) int: number of the takeover within its episode, from 0; -1 where there is none."""
    reason: np.ndarray
    """(N,) int, see `Reason`."""
    operator: str
    """Who."""
    device: str
    """By what; `simulated` here."""


class Label(IntEnum):
    """What a person says of the running episode; all but `NONE` end it."""

    NONE = 0
    SUCCESS = 1
    FAILURE = 2
    REDO = 3
    """Drop it, and begin again from the same start."""
    DISCARD = 4
    """Drop it, and go on with the next start."""


class Requests(NamedTuple):
    """What a person asks of a session beside moving the arm."""

    label: Label = Label.NONE
    """Said since the last call, the last one where there were several."""
    paused: bool = False
    """The arm is to hold its position until they go on."""
    stop: bool = False
    """The session is to end after this step; it can be gone on with later."""
    engaged: bool | None = None
    """Whether they hold the arm, or would with the next step; None where a device does not say
    between steps."""


class Operator(Protocol):
    """A person in front of N worlds, whatever they hold in their hand: keys, a SpaceMouse, a
    browser, or a script."""

    def reset(self, seeds: Sequence[int], worlds: Sequence[int] | None = None) -> None:
        """A new episode begins in `worlds` (all by default), from `seeds`; call it after every
        reset."""
        ...

    def intervene(self, proposed: np.ndarray, observation: Observation) -> Intervention:
        """Decides for every world who acts at this step; call it once per step.

        Args:
            proposed: (N, A) the policy's actions.
            observation: of all worlds.

        Returns:
            `executed` is what the worlds should be stepped with.
        """
        ...

    def requests(self) -> Requests:
        """What was asked for since the last call; call it once per step, and while paused now and
        then."""
        ...

    def status(self) -> str:
        """One short line for a screen: who has the arm, and what was last said."""
        ...

    def close(self) -> None:
        """Lets go of the device, and leaves the terminal as it was."""
        ...


class Clock(Protocol):
    """Robot time. On hardware it passes by itself; in a lockstep twin it passes when asked."""

    def now(self) -> float:
        """Robot time [s]."""
        ...

    def advance(self, seconds: float) -> float:
        """Lets robot time pass by `seconds` (a multiple of 1 ms), returns the new time [s].

        Raises:
            HandoffError: the robot no longer answers.
        """
        ...
