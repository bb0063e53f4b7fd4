"""Replays recorded joint targets in a simulated arm with many sets of parameters at once.

The arm is the robot's MuJoCo model with the gripper's mass, under the joint impedance law of
`robots.control.impedance`, without table and contacts. Targets are interpolated linearly, as
`sim.engines.mujoco` does within a control period.
"""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from robots.franka import find_robot
from robots.franka.robot import Robot
from sim.identification.config import TrackingConfig
from sim.identification.parameters import Parameter, check_parameters, write_parameters
from sim.identification.recordings import Recording, check_recordings
from sim.scene.dynamics import add_payload
from sim.scene.scene import add_joint_impedance


class Tracking:
    """Replay of a set of recordings in the simulated arm."""

    def __init__(
        self,
        recordings: Sequence[Recording],
        parameters: Sequence[Parameter],
        config: TrackingConfig,
    ) -> None:
        """Compiles the arm.

        Raises:
            HandoffError: an error of `check_recordings` or `check_parameters`.
        """
        import mujoco
        from mujoco import rollout

        self.robot = robot = find_robot(config.robot)
        check_recordings(recordings, robot.num_joints)
        check_parameters(parameters, robot)
        self.recordings = tuple(recordings)
        self.parameters = tuple(parameters)
        period = 1.0 / recordings[0].rate_hz
        self.substeps = int(np.ceil(period / config.timestep - 1e-9))
        self.timestep = period / self.substeps
        self.model = arm_model(config, robot, self.timestep)
        self._models = [copy.copy(self.model) for _ in range(config.batch)]
        self._state_spec = mujoco.mjtState.mjSTATE_FULLPHYSICS.value
        self._pool = rollout.Rollout(nthread=0 if config.threads == 1 else config.threads)
        self._data = [mujoco.MjData(self.model) for _ in range(max(1, config.threads))]

    def positions(self, values: np.ndarray) -> list[np.ndarray]:
        """Joint positions (P, T, J) [rad] per recording, simulated with the parameters `values` (P,
        D)."""
        batches = [
            self._batch(values[i : i + len(self._models)])
            for i in range(0, len(values), len(self._models))
        ]
        return [np.concatenate(arrays) for arrays in zip(*batches, strict=True)]

    def residuals(self, values: np.ndarray) -> np.ndarray:
        """(P, M) simulated minus measured [rad]: all samples except the first of each recording,
        concatenated."""
        return _flat(self._differences(values), len(values))

    def errors(self, values: np.ndarray) -> np.ndarray:
        """(P, J) mean squared tracking error per joint [rad^2]; infinite for a diverged
        simulation."""
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
        """Simulated minus measured (P, T - 1, J) [rad] per recording."""
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
        """Replays one recording with the current models and returns positions (P, T, J)."""
        count, steps = len(delays), (len(recording.q) - 1) * self.substeps
        # A physics step uses the target at its end, as in the environments.
        times = np.arange(1, steps + 1) * self.timestep
        # A state consists of the time, then positions and velocities of the joints.
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
        sampled = state[:, self.substeps - 1 :: self.substeps, positions]
        return np.concatenate([start[:, None, positions], sampled], axis=1)


def _flat(differences: Sequence[np.ndarray], count: int) -> np.ndarray:
    return np.concatenate([d.reshape(count, -1) for d in differences], axis=1)


def _delayed(recording: Recording, times: np.ndarray, delays: np.ndarray) -> np.ndarray:
    """(P, S, J) targets at `times` (S,) [s], delayed by `delays` (P,) [s]."""
    sample = np.clip(
        (times[None] - delays[:, None]) * recording.rate_hz, 0.0, len(recording.target) - 1.0
    )
    index = np.minimum(sample.astype(np.int64), len(recording.target) - 2)
    fraction = (sample - index)[..., None]
    return recording.target[index] * (1.0 - fraction) + recording.target[index + 1] * fraction


def arm_model(config: TrackingConfig, robot: Robot, timestep: float) -> Any:
    """Compiles the arm (mujoco.MjModel) without table and contacts, with the payload's body and
    the joint impedance law, for a physics step of `timestep` [s]."""
    import mujoco

    spec = mujoco.MjSpec.from_file(str(robot.model_xml))
    spec.option.timestep = timestep
    spec.option.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONTACT
    for actuator in list(spec.actuators):
        spec.delete(actuator)
    flange = spec.site(robot.flange_name).pos
    link = spec.body(robot.link_names[-1])
    gripper = robot.gripper
    if config.gripper:
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
    add_payload(spec, robot, compensated=config.payload_compensated)
    add_joint_impedance(spec, config.gains, robot)
    return spec.compile()
