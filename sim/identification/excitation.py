"""Records exciting motions of a simulated arm: sums of sines in every joint, which determine
masses, friction and gains better than the motions of a task (Swevers et al., IEEE T-RA 13(5),
1997).

A real arm records the same: send the targets of `exciting_targets` to its joint controller and
store them beside the measured positions.
"""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from robots.episodes.metadata.episode_metadata import EpisodeOrigin
from robots.errors import HandoffError
from robots.franka import find_robot
from robots.franka.robot import Robot
from robots.interfaces import Progress, no_progress
from sim.identification.config import ExcitationConfig, MotionsConfig, TrackingConfig
from sim.identification.tracking import arm_model
from sim.scene.dynamics import ArmDynamics, apply_dynamics

if TYPE_CHECKING:
    from robots.episodes.store import EpisodeStore

STREAM = "robot"
"""Stream of the recordings, as in deployments."""
RAMP = 0.15
"""Fraction of a motion in which it starts, and in which it ends, at rest."""
SETTLING = 2.0
"""Time before a recording in which the arm comes to rest under its load [s]."""
SHRINK = 0.8
"""Factor of the amplitudes when a motion comes too close to the table."""
SMALLEST = 0.02
"""Smallest fraction of the amplitudes that is tried."""


def exciting_targets(config: MotionsConfig, robot: Robot, motion: int) -> np.ndarray:
    """Targets (T, J) [rad] of one motion, which begins and ends at rest in the ready posture.

    Every joint follows a sum of sines with amplitudes and phases drawn from `config.seed` and
    `motion`, scaled to the limits of position, speed and acceleration, and to the clearance.

    Raises:
        HandoffError: too few samples, or no motion with this clearance.
    """
    samples = round(config.seconds * config.rate_hz) + 1
    rng = np.random.default_rng([config.seed, motion])
    shape = (config.harmonics, robot.num_joints)
    # Amplitudes fall with the frequency, so that all sines reach similar speeds.
    order = np.arange(1, config.harmonics + 1)
    amplitude = rng.uniform(0.3, 1.0, shape) * rng.choice([-1.0, 1.0], shape) / order[:, None]
    phase = rng.uniform(0.0, 2.0 * np.pi, shape)
    time = np.arange(samples) / config.rate_hz
    angle = 2.0 * np.pi * order[:, None] * time / config.seconds
    motion_TJ = np.einsum("hj,htj->tj", amplitude, np.sin(angle[..., None] + phase[:, None]))
    motion_TJ *= _window(time / config.seconds)[:, None]
    motion_TJ *= _largest_scale(config, robot, motion_TJ)
    fraction = 1.0
    while _lowest_height(robot, robot.q_home + fraction * motion_TJ) < config.clearance:
        fraction *= SHRINK
        if fraction < SMALLEST:
            raise HandoffError(
                f"excitation: {robot.name} comes within {config.clearance} m of the table in its ready posture. "
                "Lower `clearance`."
            )
    return robot.q_home + fraction * motion_TJ


def record_excitation(
    config: ExcitationConfig, out: Path, progress: Progress = no_progress
) -> dict[str, Any]:
    """Simulates the motions and writes them to the store at `out`, see `record_motions`.

    Args:
        config: motions, and the simulated arm.
        out: folder of the store.
        progress: counts motions.

    Raises:
        HandoffError: deviations that the arm cannot have, or an error of `record_motions`.
    """
    robot = find_robot(config.robot)
    return record_motions(
        config,
        out,
        lambda motion, target: simulate(config, robot, target, motion),
        progress,
    )


def record_motions(
    config: MotionsConfig,
    out: Path,
    measure: Callable[[int, np.ndarray], np.ndarray],
    progress: Progress = no_progress,
    *,
    arm: str = "",
) -> dict[str, Any]:
    """Lets an arm follow the exciting targets and writes them to the store at `out`, with the
    fields `q` (measured) and `q_d` (commanded) of the stream `robot`.

    Args:
        config: the motions.
        measure: given a motion's number and its targets (T, J) [rad], moves the arm along them and
            returns its measured positions (T, J) [rad].
        out: missing folder, or the store that an interrupted call with the same
            configuration has left, which is continued.
        progress: counts motions.
        arm: name of the arm in the metadata; empty takes that of the robot.

    Returns:
        episodes, frames, seconds, and `largest_motion` [rad], the largest range of each joint's
        targets (J,).

    Raises:
        HandoffError: an error of `exciting_targets` or `measure`, or a store of another
            configuration.
    """
    from robots.episodes.corrections import open_corrections
    from robots.episodes.schema import EpisodeSchema, StreamSpec
    from robots.spec import FieldSpec

    robot = find_robot(config.robot)
    targets = [exciting_targets(config, robot, motion) for motion in range(config.motions)]
    fields = {
        name: FieldSpec(shape=(robot.num_joints,), dtype="float64", unit="rad", about=about)
        for name, about in (("q", "measured joint positions"), ("q_d", "commanded positions"))
    }
    schema = EpisodeSchema(
        name="excitation",
        streams={STREAM: StreamSpec(rate_hz=config.rate_hz, fields=fields)},
        robot=robot.name,
    )
    with open_corrections(out, schema) as store:
        _check_kept(store, config, targets, arm)
        for motion in range(store.num_episodes, config.motions):
            target = targets[motion]
            metadata = _metadata(config, motion, arm)
            q = measure(motion, target)
            store.append({STREAM: {"q": q, "q_d": target}}, metadata)
            progress(motion + 1, config.motions, f"{len(q)} samples")
    return {
        "episodes": config.motions,
        "frames": sum(len(target) for target in targets),
        "seconds": config.motions * config.seconds,
        "largest_motion": np.max([np.ptp(each, axis=0) for each in targets], axis=0).tolist(),
    }


def _metadata(config: MotionsConfig, motion: int, arm: str) -> dict[str, Any]:
    origin = EpisodeOrigin(robot=arm or config.robot, host="simulated", source="excitation")
    return {**origin.entries(), "seed": config.seed, "motion": motion}


def _check_kept(
    store: EpisodeStore, config: MotionsConfig, targets: list[np.ndarray], arm: str
) -> None:
    """Refuses a store that holds other motions than the first ones of this configuration."""
    for motion in range(store.num_episodes):
        same = store.metadata(motion) == _metadata(config, motion, arm) and motion < len(targets)
        if not (same and np.array_equal(store.read(motion, STREAM)["q_d"], targets[motion])):
            raise HandoffError(
                f"{store.path}: motion {motion} is not one of this configuration. Choose another folder."
            )


def simulate(config: ExcitationConfig, robot: Robot, target: np.ndarray, motion: int) -> np.ndarray:
    """Measured positions (T, J) [rad] of the arm under the targets (T, J), from rest.

    Raises:
        HandoffError: deviations that the arm cannot have, or a diverged simulation.
    """
    import mujoco

    dynamics = ArmDynamics(
        robot=config.robot,
        values=config.deviations,
        payload_compensated=config.payload_compensated,
    )
    tracking = TrackingConfig(
        robot=config.robot,
        gains=config.gains,
        gripper=config.gripper,
        payload_compensated=config.payload_compensated,
    )
    period = 1.0 / config.rate_hz
    substeps = int(np.ceil(period / tracking.timestep - 1e-9))
    timestep = period / substeps
    model = arm_model(tracking, robot, timestep)
    apply_dynamics(dynamics, model, robot)
    data = mujoco.MjData(model)
    data.qpos[:] = target[0]
    data.ctrl[:] = target[0]
    for _ in range(round(SETTLING / timestep)):
        mujoco.mj_step(model, data)
    # A physics step uses the target at its end, as in the environments.
    steps = np.arange(1, (len(target) - 1) * substeps + 1) * timestep - dynamics.delay
    at = np.arange(len(target)) * period
    control = np.stack([np.interp(steps, at, joint) for joint in target.T], axis=1)
    q = [data.qpos.copy()]
    for step, row in enumerate(control, start=1):
        data.ctrl[:] = row
        mujoco.mj_step(model, data)
        if step % substeps == 0:
            q.append(data.qpos.copy())
    measured = np.array(q)
    if not np.isfinite(measured).all() or np.abs(measured).max() > 100.0:
        raise HandoffError(
            f"excitation: the simulation of motion {motion} diverged. Are the deviations possible for {robot.name}?"
        )
    rng = np.random.default_rng([config.seed, motion, 1])
    return measured + config.noise * rng.standard_normal(measured.shape)


def _window(fraction: np.ndarray) -> np.ndarray:
    """(T,) factor that rises from 0 to 1 and falls to 0, with two continuous derivatives."""
    near = np.clip(np.minimum(fraction, 1.0 - fraction) / RAMP, 0.0, 1.0)
    return near**3 * (10.0 - 15.0 * near + 6.0 * near**2)


def _largest_scale(config: MotionsConfig, robot: Robot, motion_TJ: np.ndarray) -> np.ndarray:
    """(J,) largest factors with which every joint keeps its limits."""
    limits = robot.limits
    dt = 1.0 / config.rate_hz
    room = np.minimum(robot.q_home - limits.q_min, limits.q_max - robot.q_home)
    # The speed limits of some robots fall towards the stops: those at the largest distance hold.
    reach = np.minimum(config.amplitude, 0.9 * room)
    slowest = np.minimum(
        -limits.velocity_limits(robot.q_home - reach)[0],
        limits.velocity_limits(robot.q_home + reach)[1],
    )
    bounds = (
        (np.abs(motion_TJ), reach),
        (np.abs(np.diff(motion_TJ, axis=0)) / dt, config.limit_fraction * slowest),
        (
            np.abs(np.diff(motion_TJ, n=2, axis=0)) / dt**2,
            config.limit_fraction * limits.ddq_max,
        ),
    )
    if len(motion_TJ) < 10:
        raise HandoffError(
            f"excitation: {config.seconds} s at {config.rate_hz} Hz are {len(motion_TJ)} samples, expected at least 10."
        )
    return np.min([limit / values.max(axis=0) for values, limit in bounds], axis=0)


def _lowest_height(robot: Robot, q: np.ndarray) -> float:
    """Smallest height [m] of the joints' frames beyond the second and of the fingertips."""
    positions, rotations = robot.chain.batched_joint_frames(q)
    tip = positions[:, -1] + rotations[:, -1] @ np.array([0.0, 0.0, robot.gripper.tcp_offset])
    return float(min(positions[:, 2:, 2].min(), tip[:, 2].min()))
