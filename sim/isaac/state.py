"""Reads and writes the state of an Isaac Lab scene as generalised positions and velocities of the
task's MuJoCo model."""

# Isaac Lab is in another virtual environment.
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from sim.isaac.usd import CLAMPS, SceneFiles
from sim.scene.view import FREE_JOINT, Layout

WXYZ = [3, 0, 1, 2]
"""Order that makes wxyz of a quaternion xyzw, which Isaac Lab has."""
XYZW = [1, 2, 3, 0]
"""The inverse order."""


class SceneState:
    """Positions and velocities of N environments, in the order of `layout`.

    Args:
        scene: an `isaaclab.scene.InteractiveScene`.
        layout: indices of the MuJoCo model's joints.
        files: USD files of the scene, whose bodies it has.
    """

    def __init__(self, scene: Any, layout: Layout, files: SceneFiles) -> None:
        self._layout = layout
        self._device = scene.device
        self._objects = {name: scene[name] for name in files.objects}
        self._fixtures = {name: scene[name] for name in files.fixtures}
        articulations = {"robot": scene["robot"], **self._fixtures}
        self._articulations = [
            (asset, *_columns(asset.joint_names, layout)) for asset in articulations.values()
        ]

    def read(self) -> tuple[np.ndarray, np.ndarray]:
        """(N, nq) positions and (N, nv) velocities, float64."""
        layout = self._layout
        n = len(_array(self._articulations[0][0].data.joint_pos))
        qpos = np.zeros((n, layout.nq))
        qvel = np.zeros((n, layout.nv))
        for asset, positions, velocities in self._articulations:
            qpos[:, positions] = _array(asset.data.joint_pos)
            qvel[:, velocities] = _array(asset.data.joint_vel)
        for name, asset in self._objects.items():
            a, b = layout.qpos[name], layout.qvel[name]
            pose = _array(asset.data.root_link_pose_w)
            qpos[:, a : a + 3] = pose[:, :3]
            qpos[:, a + 3 : a + FREE_JOINT] = pose[:, 3:][:, WXYZ]
            qvel[:, b : b + 3] = _array(asset.data.root_link_lin_vel_w)
            qvel[:, b + 3 : b + 6] = _array(asset.data.root_link_ang_vel_b)
        for name, asset in self._fixtures.items():
            pose = _array(asset.data.root_link_pose_w)
            values = (pose[:, 0], pose[:, 1], 2.0 * np.arctan2(pose[:, 5], pose[:, 6]))
            for ending, value in zip(CLAMPS, values, strict=True):
                qpos[:, layout.qpos[name + ending]] = value
        return qpos, qvel

    def write_at_rest(self, env_ids: np.ndarray, qpos: np.ndarray) -> None:
        """Puts environments at rest at positions.

        Args:
            env_ids: (M,) numbers of the environments.
            qpos: (M, nq) positions.
        """
        layout = self._layout
        ids = torch.as_tensor(env_ids, dtype=torch.int32, device=self._device)
        for asset, positions, _ in self._articulations:
            here = self._tensor(qpos[:, positions])
            asset.write_joint_position_to_sim_index(position=here, env_ids=ids)
            still = torch.zeros_like(here)
            asset.write_joint_velocity_to_sim_index(velocity=still, env_ids=ids)
        still = torch.zeros((len(env_ids), 6), device=self._device)
        for name, asset in self._objects.items():
            a = layout.qpos[name]
            quaternion = qpos[:, a + 3 : a + FREE_JOINT][:, XYZW]
            pose = self._tensor(np.concatenate([qpos[:, a : a + 3], quaternion], axis=1))
            asset.write_root_pose_to_sim_index(root_pose=pose, env_ids=ids)
            asset.write_root_velocity_to_sim_index(root_velocity=still, env_ids=ids)
        poses = {}
        for name in self._fixtures:
            x, y, yaw = (qpos[:, layout.qpos[name + ending]] for ending in CLAMPS)
            zero = np.zeros_like(x)
            columns = [x, y, zero, zero, zero, np.sin(yaw / 2), np.cos(yaw / 2)]
            poses[name] = np.stack(columns, axis=1)
        self.place_fixtures(env_ids, poses)

    def fixture_poses(self) -> dict[str, np.ndarray]:
        """(N, 7) float32 poses of the fixtures, positions [m] and quaternions xyzw, by name."""
        return {
            name: asset.data.root_link_pose_w.torch.detach().cpu().numpy().copy()
            for name, asset in self._fixtures.items()
        }

    def place_fixtures(self, env_ids: np.ndarray, poses: Mapping[str, np.ndarray]) -> None:
        """Puts the fixtures of environments (M,) at poses (M, 7), see `fixture_poses`."""
        ids = torch.as_tensor(env_ids, dtype=torch.int32, device=self._device)
        for name, pose in poses.items():
            here = self._tensor(pose)
            self._fixtures[name].write_root_pose_to_sim_index(root_pose=here, env_ids=ids)

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(array, dtype=torch.float32, device=self._device).contiguous()


def show_goals(scene: Any, files: SceneFiles, env_ids: np.ndarray, goal: np.ndarray) -> None:
    """Puts the bodies that show the goal where it is, if the scene has them.

    Args:
        scene: an `isaaclab.scene.InteractiveScene`.
        files: USD files of the scene.
        env_ids: (M,) numbers of the environments.
        goal: (M, G) goals, three entries for each body.
    """
    ids = torch.as_tensor(env_ids, dtype=torch.int32, device=scene.device)
    shown = list(scene.keys())
    for i, name in enumerate(files.goals):
        if name not in shown:
            continue
        pose = torch.zeros((len(env_ids), FREE_JOINT), device=scene.device)
        pose[:, :3] = torch.as_tensor(goal[:, 3 * i : 3 * i + 3], device=scene.device)
        pose[:, 6] = 1.0
        scene[name].write_root_pose_to_sim_index(root_pose=pose, env_ids=ids)
        still = torch.zeros((len(env_ids), 6), device=scene.device)
        scene[name].write_root_velocity_to_sim_index(root_velocity=still, env_ids=ids)


def _columns(names: list[str], layout: Layout) -> tuple[list[int], list[int]]:
    """Columns of joints in the model's positions and velocities."""
    return [layout.qpos[name] for name in names], [layout.qvel[name] for name in names]


def _array(proxy: Any) -> np.ndarray:
    return proxy.torch.detach().cpu().numpy().astype(np.float64)
