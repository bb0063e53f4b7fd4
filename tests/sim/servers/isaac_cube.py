"""A task of Isaac Lab that needs no file from a remote store: a cube on the floor is pushed to the
origin of its environment. `tests.sim.servers.isaac_cube:Handoff-Cube-Direct` is its name."""

# Isaac Lab is in another virtual environment.
# pyright: reportMissingImports=false, reportUntypedFunctionDecorator=false

from __future__ import annotations

import gymnasium
import isaaclab.sim as sim_utils
import torch
from isaaclab.assets import AssetBaseCfg, RigidObjectCfg
from isaaclab.envs import DirectRLEnv, DirectRLEnvCfg
from isaaclab.scene import InteractiveSceneCfg
from isaaclab.sim import SimulationCfg
from isaaclab.utils import configclass
from isaaclab_newton.physics import MJWarpSolverCfg, NewtonCfg

HALF = 0.05
"""Half the cube's edge [m]."""
SPEED = 0.5
"""Speed of the cube per unit of action [m/s]."""
NEAR = 0.05
"""Distance from the origin that ends the episode [m]."""


@configclass
class CubeSceneCfg(InteractiveSceneCfg):
    ground = AssetBaseCfg(
        prim_path="{ENV_REGEX_NS}/Floor",
        spawn=sim_utils.CuboidCfg(
            size=(2.0, 2.0, 0.1), collision_props=sim_utils.CollisionPropertiesCfg()
        ),
        init_state=AssetBaseCfg.InitialStateCfg(pos=(0.0, 0.0, -0.05)),
    )
    cube = RigidObjectCfg(
        prim_path="{ENV_REGEX_NS}/Cube",
        spawn=sim_utils.CuboidCfg(
            size=(2 * HALF,) * 3,
            rigid_props=sim_utils.RigidBodyPropertiesCfg(),
            mass_props=sim_utils.MassPropertiesCfg(mass=0.2),
            collision_props=sim_utils.CollisionPropertiesCfg(),
        ),
        init_state=RigidObjectCfg.InitialStateCfg(pos=(0.0, 0.0, HALF)),
    )


@configclass
class CubeCfg(DirectRLEnvCfg):
    decimation = 2
    episode_length_s = 2.0
    action_space = 2
    observation_space = 6
    state_space = 0
    sim = SimulationCfg(
        dt=0.01,
        render_interval=2,
        physics=NewtonCfg(
            solver_cfg=MJWarpSolverCfg(njmax=40, nconmax=20), num_substeps=1, use_cuda_graph=False
        ),
    )
    scene = CubeSceneCfg(num_envs=2, env_spacing=3.0, replicate_physics=True)


class CubeEnv(DirectRLEnv):
    cfg: CubeCfg

    def _position(self) -> torch.Tensor:
        return self.scene["cube"].data.root_pos_w.torch - self.scene.env_origins

    def _pre_physics_step(self, actions: torch.Tensor) -> None:
        velocity = self.scene["cube"].data.root_vel_w.torch.clone()
        velocity[:, :2] = SPEED * actions.clamp(-1.0, 1.0)
        self.scene["cube"].write_root_velocity_to_sim_index(root_velocity=velocity)

    def _apply_action(self) -> None:
        """The velocity is set once per control period."""

    def _get_observations(self) -> dict:
        velocity = self.scene["cube"].data.root_lin_vel_w.torch
        return {"policy": torch.cat((self._position(), velocity), dim=-1)}

    def _distance(self) -> torch.Tensor:
        return torch.linalg.vector_norm(self._position()[:, :2], dim=-1)

    def _get_rewards(self) -> torch.Tensor:
        return -self._distance()

    def _get_dones(self) -> tuple[torch.Tensor, torch.Tensor]:
        late = self.episode_length_buf >= self.max_episode_length - 1
        return self._distance() < NEAR, late

    def _reset_idx(self, env_ids: torch.Tensor) -> None:
        super()._reset_idx(env_ids)
        cube = self.scene["cube"]
        pose = cube.data.default_root_pose.torch[env_ids].clone()
        pose[:, :3] += self.scene.env_origins[env_ids]
        pose[:, :2] += 0.3 + 0.3 * torch.rand((len(pose), 2), device=pose.device)
        cube.write_root_pose_to_sim_index(root_pose=pose, env_ids=env_ids)
        still = torch.zeros((len(pose), 6), device=pose.device)
        cube.write_root_velocity_to_sim_index(root_velocity=still, env_ids=env_ids)


gymnasium.register(
    id="Handoff-Cube-Direct",
    entry_point=f"{__name__}:CubeEnv",
    disable_env_checker=True,
    kwargs={"env_cfg_entry_point": CubeCfg},
)
