"""Replaying recorded joint targets in the simulated FR3, under many sets of parameters at once.

The arm is that of `robots/franka/fr3.xml` with the hand's mass, under the joint impedance law of
`robots.control.impedance`, without table and contacts. Targets are joined by straight lines, as
`sim.engines.mujoco` joins them within a control period.
"""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from robots.config import config
from robots.control.impedance import ImpedanceGains
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.franka import gripper as hand
from robots.franka.fr3 import JOINT_NAMES, MODEL_XML
from sim.scene.scene import add_joint_impedance

Quantity = Literal["stiffness", "damping", "viscous", "friction", "armature", "payload", "delay"]

UNITS: dict[str, str] = {
    "stiffness": "of the gain",
    "damping": "of the gain",
    "viscous": "Nm s/rad",
    "friction": "Nm",
    "armature": "kg m^2",
    "payload": "kg",
    "delay": "s",
}
"""Of each quantity's values."""

STICTION = (0.998, 0.9995, 0.001, 0.5, 2.0)
"""MuJoCo's `solimp` of dry friction. At its default a joint under a load below the friction torque
creeps by milliradians per second; real ones stick."""

SHORTEST = 10
"""Fewest samples of a recording."""


@config
class Parameter:
    """One unknown of the simulated arm and where it may lie."""

    what: Quantity
    """stiffness, damping: of the impedance law, as factors of `TrackingConfig.gains`. viscous,
    friction: of the joints, proportional to velocity [Nm s/rad] and constant [Nm]. armature:
    reflected rotor inertia [kg m^2]. payload: mass between the fingertips [kg]. delay: of all
    targets [s]."""
    joints: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7)
    """Joints 1..7 that share the value; of no meaning for payload and delay."""
    low: float
    high: float
    """Bounds of the value, in the unit of `UNITS`."""
    log: bool = False
    """Whether the search is uniform in the logarithm; for factors."""

    @property
    def name(self) -> str:
        """Such as `stiffness of joint 2`."""
        if self.what in ("payload", "delay"):
            return self.what
        plural = "s" if len(self.joints) > 1 else ""
        return f"{self.what} of joint{plural} {', '.join(map(str, self.joints))}"


@config
class TrackingConfig:
    """The arm whose parameters are sought."""

    gains: ImpedanceGains = ImpedanceGains()
    """Gains that the robot was commanded; factors refer to them."""
    hand: bool = True
    """Whether the Franka Hand is mounted."""
    payload_compensated: bool = False
    """Whether the robot was told of its payload and carries the weight itself; then only its
    inertia is felt."""
    timestep: float = 0.005
    """Longest physics step [s]: that of the worlds that will use the result."""
    threads: int = 1
    """Threads of physics. Results do not depend on it."""
    batch: int = 64
    """Parameter sets simulated together; bounds the memory."""


class Recording(NamedTuple):
    """What the robot was told and what it did; row k of each belongs to time k / rate_hz."""

    target: np.ndarray
    """(T, 7) commanded joint positions [rad]."""
    q: np.ndarray
    """(T, 7) measured joint positions [rad]."""
    rate_hz: float
    dq: np.ndarray | None = None
    """(T, 7) measured joint velocities [rad/s], of which the first row starts the replay; None
    starts it at rest."""


def read_recordings(
    path: Path,
    *,
    episodes: Sequence[int] | None = None,
    stream: str = "robot",
    target: str = "q_d",
    every: int = 10,
) -> list[Recording]:
    """Recordings from an `EpisodeStore`, such as a deployment's 1 kHz stream `robot`.

    `q_d` is what drove the arm only where the robot's own joint controller followed it; under
    torque control record the targets in a field of their own and name it.

    Args:
        path: of the store.
        episodes: which; None takes all.
        stream: one with the fields `q` (7,), `target` (7 or more,) and perhaps `dq` (7,).
        target: field of the commanded joint positions; its first seven entries are taken.
        every: keeps each `every`-th sample; 10 makes 100 Hz of 1 kHz.

    Raises:
        HandoffError: no such store, episode, stream or field, or what `check_recordings` finds.
    """
    if every < 1:
        raise HandoffError(f"recordings: every {every}th sample asked for, expected at least 1.")
    store = EpisodeStore.open(path)
    spec = store.schema.stream(stream)
    fields = ["q", target, *(["dq"] if "dq" in spec.fields else [])]
    recordings = []
    for episode in range(store.num_episodes) if episodes is None else episodes:
        arrays = store.read(episode, stream, fields)
        taken = {
            name: np.asarray(array, dtype=np.float64)[::every] for name, array in arrays.items()
        }
        recordings.append(
            Recording(taken[target][:, :7], taken["q"], spec.rate_hz / every, taken.get("dq"))
        )
    check_recordings(recordings)
    return recordings


def check_recordings(recordings: Sequence[Recording]) -> None:
    """Checks that recordings can be replayed together.

    Raises:
        HandoffError: none, another shape than (T, 7), too short, not finite, different rates, or an
            arm that never left its place.
    """
    if not recordings:
        raise HandoffError("recordings: none given, at least 1 is needed. Is the store empty?")
    for i, recording in enumerate(recordings):
        length = len(recording.q)
        arrays = {"q": recording.q, "target": recording.target}
        arrays |= {} if recording.dq is None else {"dq": recording.dq}
        for name, array in arrays.items():
            if array.shape != (length, 7):
                raise HandoffError(
                    f"recording {i}: {name} has shape {array.shape}, expected ({length}, 7). Is it the arm's alone?"
                )
            if not np.isfinite(array).all():
                step, joint = np.argwhere(~np.isfinite(array))[0]
                raise HandoffError(
                    f"recording {i}: {name} of joint {joint + 1} at sample {step} is {array[step, joint]}, expected a "
                    "finite number. Was a sensor lost?"
                )
        if length < SHORTEST:
            raise HandoffError(
                f"recording {i}: {length} samples, at least {SHORTEST} are needed. Was it cut off at once?"
            )
        if not recording.rate_hz > 0.0:
            raise HandoffError(
                f"recording {i}: rate is {recording.rate_hz} Hz, expected more than 0."
            )
    rates = sorted({float(recording.rate_hz) for recording in recordings})
    if len(rates) > 1:
        raise HandoffError(
            f"recordings: rates {rates} Hz, expected one. Resample them before tuning."
        )
    if max(float(np.ptp(recording.target, axis=0).max()) for recording in recordings) < 1e-4:
        raise HandoffError(
            "recordings: no target moves by more than 0.0001 rad; nothing can be told from an arm at rest. "
            "Was the field of the targets the right one?"
        )


class Tracking:
    """The simulated arm in front of a set of recordings."""

    def __init__(
        self,
        recordings: Sequence[Recording],
        parameters: Sequence[Parameter],
        config: TrackingConfig,
    ) -> None:
        """Compiles the arm.

        Raises:
            HandoffError: see `check_recordings`; no parameters, joints that do not exist, or empty
                ranges.
        """
        import mujoco
        from mujoco import rollout

        check_recordings(recordings)
        check_parameters(parameters)
        self.recordings, self.parameters = tuple(recordings), tuple(parameters)
        period = 1.0 / recordings[0].rate_hz
        self.substeps = int(np.ceil(period / config.timestep - 1e-9))
        self.timestep = period / self.substeps
        self.model = _arm(config, self.timestep)
        self._models = [copy.copy(self.model) for _ in range(config.batch)]
        self._state_spec = mujoco.mjtState.mjSTATE_FULLPHYSICS.value
        self._pool = rollout.Rollout(nthread=0 if config.threads == 1 else config.threads)
        self._data = [mujoco.MjData(self.model) for _ in range(max(1, config.threads))]

    def positions(self, values: np.ndarray) -> list[np.ndarray]:
        """Per recording (P, T, 7): joint positions [rad] simulated with the parameters `values` (P,
        D)."""
        parts = [
            self._batch(values[i : i + len(self._models)])
            for i in range(0, len(values), len(self._models))
        ]
        return [np.concatenate(part) for part in zip(*parts, strict=True)]

    def residuals(self, values: np.ndarray) -> np.ndarray:
        """(P, M) simulated minus measured [rad], all samples but the first of each recording, one
        after another."""
        return _flat(self._differences(values), len(values))

    def errors(self, values: np.ndarray) -> np.ndarray:
        """(P, 7) mean squared tracking difference per joint [rad^2]; infinite where a simulation
        diverged."""
        size = len(self._models)
        errors = []
        for i in range(0, len(values), size):
            squares = [d**2 for d in self._differences(values[i : i + size])]
            errors.append(np.concatenate(squares, axis=1).mean(axis=1))
        stacked = np.concatenate(errors)
        return np.where(np.isfinite(stacked).all(axis=1, keepdims=True), stacked, np.inf)

    def close(self) -> None:
        """Stops the threads."""
        self._pool.close()

    def _differences(self, values: np.ndarray) -> list[np.ndarray]:
        """Per recording (P, T - 1, 7)."""
        simulated = self.positions(values)
        return [s[:, 1:] - r.q[None, 1:] for s, r in zip(simulated, self.recordings, strict=True)]

    def _batch(self, values: np.ndarray) -> list[np.ndarray]:
        import mujoco

        delays = np.zeros(len(values))
        for row, (value, model) in enumerate(zip(values, self._models, strict=False)):
            delays[row] = write_parameters(self.parameters, value, self.model, model)
            mujoco.mj_setConst(model, self._data[0])
        return [self._replay(recording, delays) for recording in self.recordings]

    def _replay(self, recording: Recording, delays: np.ndarray) -> np.ndarray:
        """(P, T, 7) positions of one recording, models being written already."""
        count, steps = len(delays), (len(recording.q) - 1) * self.substeps
        # A physics step is driven by the target at its end, as in the worlds.
        times = np.arange(1, steps + 1) * self.timestep
        start = np.zeros((count, 1 + 14))
        start[:, 1:8] = recording.q[0]
        if recording.dq is not None:
            start[:, 8:] = recording.dq[0]
        state = np.empty((count, steps, start.shape[1]))
        self._pool.rollout(
            self._models[:count],
            self._data,
            start,
            _delayed(recording, times, delays),
            nstep=steps,
            state=state,
            sensordata=np.empty((count, steps, 0)),
            skip_checks=True,
        )
        seen = state[:, self.substeps - 1 :: self.substeps, 1:8]
        return np.concatenate([start[:, None, 1:8], seen], axis=1)


def check_parameters(parameters: Sequence[Parameter]) -> None:
    """Checks joints and bounds.

    Raises:
        HandoffError: no parameters, the same one twice, a joint outside 1..7, or bounds that are
            not low < high.
    """
    if not parameters:
        raise HandoffError("parameters: none given, at least 1 is needed.")
    names = [parameter.name for parameter in parameters]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise HandoffError(f"parameters: {twice} given twice.")
    for item in parameters:
        if not item.joints or any(not 1 <= joint <= 7 for joint in item.joints):
            raise HandoffError(
                f"parameter {item.name}: joints {list(item.joints)}, expected numbers from 1 to 7."
            )
        lowest = 1e-12 if item.log or item.what in ("stiffness", "damping") else 0.0
        if not (lowest <= item.low < item.high < float("inf")):
            raise HandoffError(
                f"parameter {item.name}: range [{item.low}, {item.high}] {UNITS[item.what]}, expected "
                f"{'0 <' if lowest else '0 <='} low < high. Are the bounds swapped?"
            )


def write_parameters(
    parameters: Sequence[Parameter], values: np.ndarray, base: Any, model: Any
) -> float:
    """Writes `values` (D,) into `model` (mujoco.MjModel), a copy of `base` with joint impedance;
    returns the delay [s].

    `mj_setConst` must follow. The models of tasks with joint actions may be written as well, save
    for `payload`.

    Raises:
        HandoffError: the model lacks an actuator, a joint or the payload's body.
    """
    delay = 0.0
    for item, value in zip(parameters, values, strict=True):
        names = [JOINT_NAMES[joint - 1] for joint in item.joints]
        match item.what:
            case "stiffness":
                found = [_find(base, item, "actuator", f"impedance_{name}").id for name in names]
                model.actuator_gainprm[found, 0] = value * base.actuator_gainprm[found, 0]
                model.actuator_biasprm[found, 1] = value * base.actuator_biasprm[found, 1]
            case "damping":
                found = [_find(base, item, "actuator", f"impedance_{name}").id for name in names]
                model.actuator_biasprm[found, 2] = value * base.actuator_biasprm[found, 2]
            case "payload":
                body = _find(base, item, "body", "payload").id
                model.body_mass[body] = value
                # A ball of 3 cm radius: small beside what its distance from the joints makes of it.
                model.body_inertia[body] = 0.4 * value * 0.03**2
            case "delay":
                delay += float(value)
            case "viscous" | "friction" | "armature":
                _write_joints(
                    item,
                    value,
                    [_find(base, item, "joint", name).dofadr[0] for name in names],
                    model,
                )
    return delay


def _write_joints(item: Parameter, value: float, dofs: list[int], model: Any) -> None:
    match item.what:
        case "viscous":
            model.dof_damping[dofs] = value
        case "armature":
            model.dof_armature[dofs] = value
        case _:
            model.dof_frictionloss[dofs] = value
            model.dof_solimp[dofs] = STICTION


def _find(
    model: Any, item: Parameter, kind: Literal["actuator", "joint", "body"], name: str
) -> Any:
    try:
        return getattr(model, kind)(name)
    except KeyError:
        raise HandoffError(
            f"{item.name}: the model has no {kind} '{name}'. Does its task act on joints?"
        ) from None


def nominal_values(parameters: Sequence[Parameter]) -> np.ndarray:
    """(D,) the values that the model has before tuning: factors of 1, no friction, no payload, no
    delay."""
    from robots.franka.fr3 import ARMATURE, JOINT_DAMPING

    nominal = {"stiffness": 1.0, "damping": 1.0, "viscous": JOINT_DAMPING, "armature": ARMATURE}
    return np.array([nominal.get(parameter.what, 0.0) for parameter in parameters])


def _flat(differences: Sequence[np.ndarray], count: int) -> np.ndarray:
    return np.concatenate([d.reshape(count, -1) for d in differences], axis=1)


def _delayed(recording: Recording, times: np.ndarray, delays: np.ndarray) -> np.ndarray:
    """(P, S, 7) targets in force at `times` (S,) [s] when they arrive `delays` (P,) [s] late."""
    sample = np.clip(
        (times[None] - delays[:, None]) * recording.rate_hz, 0.0, len(recording.target) - 1.0
    )
    before = np.minimum(sample.astype(np.int64), len(recording.target) - 2)
    share = (sample - before)[..., None]
    return recording.target[before] * (1.0 - share) + recording.target[before + 1] * share


def _arm(config: TrackingConfig, timestep: float) -> Any:
    import mujoco

    spec = mujoco.MjSpec.from_file(str(MODEL_XML))
    spec.option.timestep = timestep
    spec.option.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONTACT
    for actuator in list(spec.actuators):
        spec.delete(actuator)
    flange = spec.site("fr3_flange").pos
    link = spec.body("fr3_link7")
    if config.hand:
        half_turn = hand.FLANGE_T_HAND_YAW / 2
        link.add_body(
            name="hand",
            pos=flange,
            quat=[np.cos(half_turn), 0, 0, np.sin(half_turn)],
            gravcomp=1.0,
            mass=hand.MASS,
            ipos=hand.COM,
            inertia=hand.INERTIA,
            explicitinertial=True,
        )
    link.add_body(
        name="payload",
        pos=flange + np.array([0.0, 0.0, hand.TCP_OFFSET]),
        gravcomp=1.0 if config.payload_compensated else 0.0,
        mass=1e-6,
        ipos=[0, 0, 0],
        inertia=[1e-9] * 3,
        explicitinertial=True,
    )
    add_joint_impedance(spec, config.gains)
    return spec.compile()
