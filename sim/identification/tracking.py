"""Replaying recorded joint targets in a simulated arm, under many sets of parameters at once.

The arm is the robot's MuJoCo model with the hand's mass, under the joint impedance law of
`robots.control.impedance`, without table and contacts. Targets are joined by straight lines, as
`sim.engines.mujoco` joins them within a control period.
"""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from robots.config import config
from robots.control.impedance import ImpedanceGains
from robots.franka import RobotName, find_robot
from robots.franka.robot import Robot
from sim.identification.parameters import Parameter, check_parameters, write_parameters
from sim.identification.recordings import Recording, check_recordings
from sim.scene.scene import add_joint_impedance


@config
class TrackingConfig:
    """The arm whose parameters are sought."""

    robot: RobotName = "fr3"
    """The arm."""
    gains: ImpedanceGains = ImpedanceGains()
    """Gains that the robot was commanded; factors refer to them."""
    hand: bool = True
    """Whether the robot's gripper is mounted."""
    payload_compensated: bool = False
    """Whether the robot was told of its payload and carries the weight itself; then only its
    inertia is felt."""
    timestep: float = 0.005
    """Longest physics step [s]: that of the worlds that will use the result."""
    threads: int = 1
    """Threads of physics. Results do not depend on it."""
    batch: int = 64
    """Parameter sets simulated together; bounds the memory."""


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

        self.robot = robot = find_robot(config.robot)
        check_recordings(recordings, robot.num_joints)
        check_parameters(parameters, robot)
        self.recordings, self.parameters = tuple(recordings), tuple(parameters)
        period = 1.0 / recordings[0].rate_hz
        self.substeps = int(np.ceil(period / config.timestep - 1e-9))
        self.timestep = period / self.substeps
        self.model = _arm(config, robot, self.timestep)
        self._models = [copy.copy(self.model) for _ in range(config.batch)]
        self._state_spec = mujoco.mjtState.mjSTATE_FULLPHYSICS.value
        self._pool = rollout.Rollout(nthread=0 if config.threads == 1 else config.threads)
        self._data = [mujoco.MjData(self.model) for _ in range(max(1, config.threads))]

    def positions(self, values: np.ndarray) -> list[np.ndarray]:
        """Per recording (P, T, J): joint positions [rad] simulated with the parameters `values` (P,
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
        """(P, J) mean squared tracking difference per joint [rad^2]; infinite where a simulation
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
        """Per recording (P, T - 1, J)."""
        simulated = self.positions(values)
        return [s[:, 1:] - r.q[None, 1:] for s, r in zip(simulated, self.recordings, strict=True)]

    def _batch(self, values: np.ndarray) -> list[np.ndarray]:
        import mujoco

        delays = np.zeros(len(values))
        for row, (value, model) in enumerate(zip(values, self._models, strict=False)):
            delays[row] = write_parameters(self.parameters, value, self.model, model, self.robot)
            mujoco.mj_setConst(model, self._data[0])
        return [self._replay(recording, delays) for recording in self.recordings]

    def _replay(self, recording: Recording, delays: np.ndarray) -> np.ndarray:
        """(P, T, J) positions of one recording, models being written already."""
        count, steps = len(delays), (len(recording.q) - 1) * self.substeps
        # A physics step is driven by the target at its end, as in the worlds.
        times = np.arange(1, steps + 1) * self.timestep
        # A state is the time, then positions and velocities of the joints.
        joints = self.robot.num_joints
        positions = slice(1, 1 + joints)
        start = np.zeros((count, 1 + 2 * joints))
        start[:, positions] = recording.q[0]
        if recording.dq is not None:
            start[:, 1 + joints :] = recording.dq[0]
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
        seen = state[:, self.substeps - 1 :: self.substeps, positions]
        return np.concatenate([start[:, None, positions], seen], axis=1)


def _flat(differences: Sequence[np.ndarray], count: int) -> np.ndarray:
    return np.concatenate([d.reshape(count, -1) for d in differences], axis=1)


def _delayed(recording: Recording, times: np.ndarray, delays: np.ndarray) -> np.ndarray:
    """(P, S, J) targets in force at `times` (S,) [s] when they arrive `delays` (P,) [s] late."""
    sample = np.clip(
        (times[None] - delays[:, None]) * recording.rate_hz, 0.0, len(recording.target) - 1.0
    )
    before = np.minimum(sample.astype(np.int64), len(recording.target) - 2)
    share = (sample - before)[..., None]
    return recording.target[before] * (1.0 - share) + recording.target[before + 1] * share


def _arm(config: TrackingConfig, robot: Robot, timestep: float) -> Any:
    import mujoco

    spec = mujoco.MjSpec.from_file(str(robot.model_xml))
    spec.option.timestep = timestep
    spec.option.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONTACT
    for actuator in list(spec.actuators):
        spec.delete(actuator)
    flange = spec.site(robot.flange_name).pos
    link = spec.body(robot.link_names[-1])
    gripper = robot.gripper
    if config.hand:
        half_turn = gripper.yaw / 2
        link.add_body(
            name="hand",
            pos=flange,
            quat=[np.cos(half_turn), 0, 0, np.sin(half_turn)],
            gravcomp=1.0,
            mass=gripper.mass,
            ipos=gripper.com,
            inertia=gripper.inertia,
            explicitinertial=True,
        )
    link.add_body(
        name="payload",
        pos=flange + np.array([0.0, 0.0, gripper.tcp_offset]),
        gravcomp=1.0 if config.payload_compensated else 0.0,
        mass=1e-6,
        ipos=[0, 0, 0],
        inertia=[1e-9] * 3,
        explicitinertial=True,
    )
    add_joint_impedance(spec, config.gains, robot)
    return spec.compile()
