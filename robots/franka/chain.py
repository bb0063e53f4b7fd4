"""Computes poses and Jacobians of an arm from its Denavit-Hartenberg parameters."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from robots.errors import HandoffError


@dataclass(frozen=True, kw_only=True, eq=False)
class KinematicChain:
    """Revolute joints in a row and a flange on the axis of the last one. J is the number of joints.

    The parameters follow Craig's (modified) convention: a frame is reached from the one before it
    by a shift `a` along x, a turn `alpha` about x, a shift `d` along z, and a turn about z by the
    joint's position.
    """

    dh: np.ndarray
    """(J, 3) parameters a [m], d [m], alpha [rad] of each joint; alpha in multiples of pi / 2."""
    flange_offset: float
    """Distance of the flange from the last joint's frame, along its z [m]."""
    source: str
    """Publication that states these figures."""
    parent_T_joint: np.ndarray = field(init=False, repr=False)
    """(J, 4, 4) pose of each joint's frame in the one before it at a joint position of zero [m]."""

    def __post_init__(self) -> None:
        # Not a functools.cached_property, whose lock torch.compile cannot trace.
        object.__setattr__(self, "parent_T_joint", _constant_transforms(self.dh))

    @property
    def num_joints(self) -> int:
        """Number of joints, J."""
        return len(self.dh)

    def joint_frames(self, q: np.ndarray) -> np.ndarray:
        """Poses of all joint frames and of the flange.

        Args:
            q: (J,) joint positions [rad].

        Returns:
            (J + 1, 4, 4) base_T_joint1 to base_T_jointJ, then base_T_flange [m].
        """
        frames = np.empty((self.num_joints + 1, 4, 4))
        pose = np.eye(4)
        rotation = np.eye(4)
        for i, (c, s) in enumerate(zip(np.cos(q), np.sin(q), strict=True)):
            # Written out, because a nested list is slower than the product that follows.
            rotation[0, 0] = c
            rotation[0, 1] = -s
            rotation[1, 0] = s
            rotation[1, 1] = c
            pose = pose @ self.parent_T_joint[i] @ rotation
            frames[i] = pose
        frames[-1] = pose
        frames[-1, :3, 3] += self.flange_offset * pose[:3, 2]
        return frames

    def forward_kinematics(self, q: np.ndarray) -> np.ndarray:
        """(4, 4) base_T_flange [m] at the joint positions `q` (J,) [rad]."""
        return self.joint_frames(q)[-1]

    def jacobian(self, q: np.ndarray) -> np.ndarray:
        """(6, J) Jacobian of the flange at `q` (J,) [rad] in base axes.

        Linear rows [m/rad] stand above the angular ones [rad/rad].
        """
        return self.jacobian_of(self.joint_frames(q))

    def jacobian_of(self, frames: np.ndarray) -> np.ndarray:
        """(6, J) Jacobian of the flange, given the poses of `joint_frames`; see `jacobian`."""
        axes = frames[:-1, :3, 2]
        levers = frames[-1, :3, 3] - frames[:-1, :3, 3]
        return np.vstack([np.cross(axes, levers).T, axes.T])

    def batched_joint_frames(self, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Poses of all joint frames and of the flange, of many arms at once.

        Args:
            q: (N, J) joint positions [rad].

        Returns:
            Positions (N, J + 1, 3) [m] and rotations (N, J + 1, 3, 3) in base axes, in the order
            of `joint_frames`.
        """
        n, joints = len(q), self.num_joints
        positions = np.empty((n, joints + 1, 3))
        rotations = np.empty((n, joints + 1, 3, 3))
        cosines, sines = np.cos(q), np.sin(q)
        turn = np.zeros((n, 3, 3))
        turn[:, 2, 2] = 1.0
        position = np.zeros((n, 3))
        rotation = np.broadcast_to(np.eye(3), (n, 3, 3))
        for i in range(joints):
            turn[:, 0, 0] = turn[:, 1, 1] = cosines[:, i]
            turn[:, 1, 0] = sines[:, i]
            turn[:, 0, 1] = np.negative(sines[:, i])
            position = position + rotation @ self.parent_T_joint[i, :3, 3]
            rotation = rotation @ (self.parent_T_joint[i, :3, :3] @ turn)
            positions[:, i] = position
            rotations[:, i] = rotation
        positions[:, joints] = position + self.flange_offset * rotation[:, :, 2]
        rotations[:, joints] = rotation
        return positions, rotations


def _constant_transforms(dh: np.ndarray) -> np.ndarray:
    """(J, 4, 4) transforms of the parameters `dh` (J, 3) at joint positions of zero [m]."""
    if dh.ndim != 2 or dh.shape[1] != 3:
        raise HandoffError(
            f"kinematic chain: dh has the shape {dh.shape}, expected (joints, 3) for a, d and alpha. "
            "Does it contain a row for the flange?"
        )
    transforms = np.tile(np.eye(4), (len(dh), 1, 1))
    for transform, (a, d, alpha) in zip(transforms, dh, strict=True):
        # Rounded, because cos(pi/2) is not exactly 0 in floating point.
        c, s = float(np.round(np.cos(alpha))), float(np.round(np.sin(alpha)))
        if abs(c - np.cos(alpha)) + abs(s - np.sin(alpha)) > 1e-9:
            raise HandoffError(
                f"kinematic chain: alpha is {alpha} rad, expected a multiple of pi / 2. Is it given in degrees?"
            )
        transform[:3, :3] = [[1, 0, 0], [0, c, -s], [0, s, c]]
        transform[:3, 3] = [a, -d * s, d * c]
    return transforms
