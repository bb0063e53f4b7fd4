"""Repeats the actions of recorded episodes at a table, and compares the motion with the recorded
one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flows.deployment.arms import move_supervised
from flows.deployment.session_tables.supervised_run import SupervisedRun
from robots.contract import Contract
from robots.errors import HandoffError

if TYPE_CHECKING:
    from flows.deployment.deployed_episode import DeployedEpisode
    from real.deploy.episode_recorder import LoopRecord
    from real.deploy.loop import LoopConfig
    from real.deploy.supervision import Supervision
    from real.driver.driven_arm import DrivenArm
    from robots.episodes.store import EpisodeStore
    from robots.spec import FieldSpec

STORE = "store.zarr"
"""Store of a session's folder."""
AT_START = 0.01
"""Distance of every joint from the recorded start below which the arm is there [rad]."""


class RecordedEpisode(NamedTuple):
    """What is repeated of an episode."""

    number: int
    """Number of the episode in its store."""
    seed: int
    """Seed that placed the simulated objects."""
    actions: np.ndarray
    """(T, A) executed actions."""
    q_start: np.ndarray
    """(J,) joint positions at the beginning [rad]."""
    path: np.ndarray
    """(N, D) measured position at the end of every tick [m]."""
    stream_hz: float
    """Ticks per second."""


class RecordedSession:
    """Recorded episodes, whose actions have the meaning of a contract.

    Args:
        folder: a store, or the folder of a session with `store.zarr`.
        contract: contract of the policy in whose place the actions are repeated.

    Raises:
        HandoffError: no store, one without the streams of a deployment, or actions of another
            meaning or rate.
    """

    def __init__(self, folder: Path, contract: Contract) -> None:
        from robots.episodes.store import EpisodeStore

        inside = folder / STORE
        self.path = inside if inside.is_dir() else folder
        self._store: EpisodeStore = EpisodeStore.open(self.path, "r")
        streams = self._store.schema.streams
        missing = sorted({"policy", "reference", "robot"} - streams.keys())
        if missing:
            raise HandoffError(
                f"replay: {self.path} lacks the streams {missing}; expected episodes of handoff deploy or of the "
                "stage `deploy`."
            )
        _check_action(self.path, streams["policy"].fields["action"], contract)
        if abs(streams["policy"].rate_hz - contract.rate_hz) > 1e-6:
            raise HandoffError(
                f"replay: {self.path} has {streams['policy'].rate_hz:g} actions per second, the policy "
                f"{contract.rate_hz:g}. Was it a dry run?"
            )

        if not len(self):
            raise HandoffError(f"replay: {self.path} has no episode.")
        self.longest = max(len(self.episode(number).actions) for number in range(len(self)))
        """Actions of the longest episode."""

    def __len__(self) -> int:
        return self._store.num_episodes

    def episode(self, number: int) -> RecordedEpisode:
        """Reads an episode."""
        store = self._store
        return RecordedEpisode(
            number,
            int(store.metadata(number).get("seed", 0)),
            store.read(number, "policy", ["action"])["action"],
            store.read(number, "robot", ["q"])["q"][0],
            store.read(number, "reference", ["measured"])["measured"],
            store.schema.streams["reference"].rate_hz,
        )


class RecordedActions:
    """Implements `robots.interfaces.Policy` by recorded actions, one per call; after the last it
    repeats the last."""

    def __init__(self, actions: np.ndarray) -> None:
        """Begins with the first of (T, A) actions."""
        self._actions = actions
        self._next = 0

    def __call__(self, observation: object, noise: np.ndarray) -> np.ndarray:
        """See `robots.interfaces.Policy`; the contract is that of `replay_contract`."""
        action = self._actions[min(self._next, len(self._actions) - 1)]
        self._next += 1
        return np.broadcast_to(action, noise.shape).astype(np.float32)


def replay_contract(contract: Contract, unmeasured: Sequence[str] = ()) -> Contract:
    """The contract of recorded actions in a policy's place: it observes no picture, is told
    nothing, and gives one action at a time.

    Args:
        contract: contract of the policy.
        unmeasured: observed fields that are left out.
    """
    fields = {name: spec for name, spec in contract.observation.items() if name not in unmeasured}
    return replace(
        contract,
        observation=fields,
        sensors={},
        instruction=False,
        n_obs_steps=1,
        observation_stride=1,
        horizon=1,
        n_action_steps=1,
        prefix=0,
        ensemble=None,
    )


class ReplayedRun(SupervisedRun):
    """Recorded episodes at a table, one after another, with a person at the console.

    Args:
        recording: what is repeated.
        arguments: those of `SupervisedRun`.
    """

    def __init__(self, recording: RecordedSession, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._recording = recording
        self._recorded = recording.episode(0)

    def next_episode(self, say: Callable[[str], None]) -> bool:
        """See `SupervisedRun.next_episode`; also over behind the last recorded episode."""
        from robots.episodes.metadata.episode_metadata import next_start

        number = next_start(self._store)
        if number >= len(self._recording):
            return False
        self._recorded = self._recording.episode(number)
        self._policy = RecordedActions(self._recorded.actions)
        return super().next_episode(say)

    def seed(self, start: int) -> int:
        """See `SupervisedRun.seed`: that of the recorded episode."""
        return self._recorded.seed

    def prepared(self, arm: DrivenArm, supervision: Supervision) -> bool:
        """See `SupervisedRun.prepared`: moves to the recorded start."""
        q = self._recorded.q_start
        away = np.abs(arm.state().q - q).max() > AT_START
        return not away or move_supervised(arm, (q,), supervision, self._session.loop.fence)

    def loop(self, loop: LoopConfig) -> LoopConfig:
        """See `SupervisedRun.loop`: as long as the recorded episode."""
        return replace(loop, max_steps=len(self._recorded.actions))

    def _outcome(self, seed: int, record: LoopRecord) -> DeployedEpisode:
        """See `SupervisedRun`: the table is also asked after the last action."""
        if len(record.policy.get("action", [])) == len(self._recorded.actions):
            self._table.is_over()
        return super()._outcome(seed, record)

    def compared(self, record: LoopRecord) -> dict[str, Any]:
        """See `SupervisedRun.compared`: the distance from the recorded motion."""
        recorded = self._recorded
        about = {"of": str(self._recording.path), "episode": recorded.number}
        return {"replay": {**about, **self._distance(record)}}

    def note(self, about: dict[str, Any]) -> str:
        """See `SupervisedRun.note`."""
        found = about["replay"]
        which = f"recording {found['episode'] + 1} of {len(self._recording)} repeated"
        if "max_mm" not in found:
            return f"{which}, not compared"
        return f"{which} to {found['rms_mm']:.1f} mm, {found['max_mm']:.1f} mm at most"

    def _distance(self, record: LoopRecord) -> dict[str, float]:
        """Root mean square and largest distance of the measured positions at the same times [mm];
        nothing if a person held or led the arm, or at another rate."""
        measured = np.array(record.reference.get("measured", []))
        corrected = any(np.any(step) for step in record.policy.get("intervention", []))
        same = self._recorded.stream_hz == self._session.loop.stream_hz
        if not len(measured) or record.held or corrected or not same or self._session.speed != 1.0:
            return {}
        both = min(len(measured), len(self._recorded.path))
        off = np.linalg.norm(measured[:both] - self._recorded.path[:both], axis=1)
        return {
            "rms_mm": round(1e3 * float(np.sqrt(np.mean(off**2))), 3),
            "max_mm": round(1e3 * float(off.max()), 3),
        }


def _check_action(path: Path, recorded: FieldSpec, contract: Contract) -> None:
    """Refuses actions of another size, unit or meaning."""
    stated, expected = (
        (spec.shape, spec.unit, spec.interface or contract.action_interface)
        for spec in (recorded, contract.action)
    )
    if stated != expected:
        raise HandoffError(
            f"replay: actions of {path} are {stated}, those of the policy {expected} (shape, unit, meaning)."
        )
