"""Draws the randomised fields of the model for many environments of mujoco-warp, on the host."""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from robots.errors import HandoffError
from sim.episode_streams import EpisodeStream
from sim.scene import randomize
from sim.scene.randomize import Range

BATCHED = (
    "body_mass",
    "body_inertia",
    "body_subtreemass",
    "body_invweight0",
    "dof_invweight0",
    "dof_damping",
    "geom_friction",
    "pair_friction",
    "actuator_gainprm",
    "actuator_biasprm",
    "actuator_acc0",
)
"""Fields of the model that differ between randomised environments: drawn fields and those derived
from them."""
PICTURED = ("cam_pos", "cam_quat", "cam_fovy", "light_diffuse", "geom_rgba")
"""Fields that only pictures show."""


class ModelDraws:
    """Model fields and delays of N randomised environments.

    Attributes:
        values: (N, R, 3) drawn values of the R ranges.
        fields: the fields `BATCHED`, and with pictures `PICTURED`, of all environments by name,
            each (N, ...); empty without ranges.
        delay_s: (N,) drawn delay of the actions [s].

    Args:
        ranges: randomised quantities of the task; none draws nothing.
        model: compiled model (mujoco.MjModel) before randomisation.
        num_envs: N.
        pictured: whether the environments have cameras.

    Raises:
        HandoffError: with cameras, a range of a texture or of the light at the camera, which
            mujoco-warp has for all environments alike.
    """

    def __init__(
        self, ranges: Sequence[Range], model: Any, num_envs: int, *, pictured: bool = False
    ) -> None:
        shared = [
            item.what
            for item in ranges
            if item.what == "background" or randomize.HEADLIGHT in item.names
        ]
        if pictured and shared:
            raise HandoffError(
                f"warp: pictures of all environments share textures and headlight, but the ranges draw {shared[0]}. "
                "Remove the range, or use the engine mujoco."
            )
        self.ranges = ranges
        self.values = np.ones((num_envs, len(ranges), 3))
        self.delay_s = np.zeros(num_envs)
        self.fields: dict[str, np.ndarray] = {}
        self._model = model
        if ranges:
            self._drawn = copy.copy(model)
            fields = (*BATCHED, *PICTURED) if pictured else BATCHED
            self.fields = {name: np.stack([getattr(model, name)] * num_envs) for name in fields}

    def draw(self, env_ids: np.ndarray, seeds: np.ndarray) -> None:
        """Draws the values of some environments from their seeds, and writes their fields."""
        if not self.ranges:
            return
        for env_id, seed in zip(env_ids.tolist(), seeds.tolist(), strict=True):
            # The same stream as in the CPU engine, so both draw the same parameters.
            rng = np.random.default_rng([seed, EpisodeStream.DOMAIN_RANDOMIZATION])
            self.values[env_id] = randomize.draw(self.ranges, rng)
        self.write(env_ids)

    def write(self, env_ids: np.ndarray) -> None:
        """Writes the fields and delays of some environments from their values."""
        import mujoco

        data = mujoco.MjData(self._model)
        for env_id in env_ids.tolist():
            randomize.apply(self.ranges, self.values[env_id], self._model, self._drawn)
            # Contact softness depends on quantities that the engine derives from the masses.
            mujoco.mj_setConst(self._drawn, data)
            for name, values in self.fields.items():
                values[env_id] = getattr(self._drawn, name)
            self.delay_s[env_id] = randomize.delay_of(self.ranges, self.values[env_id])
