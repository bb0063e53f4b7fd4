"""Draws the push-T board from above as gym-pusht draws its image observations, from the positions
of pusher and block, wherever these come from."""

from __future__ import annotations

import os

import numpy as np

from robots.errors import HandoffError
from sim.engines.opencv_substitute import importable_opencv

MILLIMETRES = 1000.0
"""Pixels of gym-pusht's drawing per metre; a picture is the drawing of 512 x 512 px, resized."""


class BoardPicture:
    """The board from above: white, with the goal in green, the T in grey and the pusher in blue.
    Nothing else is in the picture, neither the arm nor shadows.

    Args:
        height: of the pictures [px].
        width: of the pictures [px].

    Raises:
        HandoffError: gym-pusht, which draws, is not installed.
    """

    def __init__(self, height: int, width: int) -> None:
        # Otherwise pygame, which gym-pusht uses, prints a message when it is imported.
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        try:
            with importable_opencv():
                from gym_pusht.envs.pusht import PushTEnv
        except ImportError as error:
            raise HandoffError(
                f"push-T pictures: gym-pusht, which draws the board, cannot be imported ({error}). Install it: pip "
                "install gym-pusht"
            ) from None
        self._env = PushTEnv(obs_type="state", observation_width=width, observation_height=height)
        self._env.reset(seed=0)

    def draw(self, agent: np.ndarray, block_pose: np.ndarray) -> np.ndarray:
        """Draws one state.

        Args:
            agent: (2,) position of the pusher [m], board frame.
            block_pose: (3,) x, y [m], angle [rad] of the T, board frame.

        Returns:
            (height, width, 3) uint8 RGB.
        """
        agent_body, block_body = self._env.agent, self._env.block
        agent_body.position = tuple(MILLIMETRES * agent)
        # gym-pusht's block turns about its centre of mass, so the angle is set first.
        block_body.angle = float(block_pose[2])
        block_body.position = tuple(MILLIMETRES * block_pose[:2])
        # The drawing uses the shapes' cached corners, which a step of the physics would refresh,
        # but also move.
        for body in (agent_body, block_body):
            self._env.space.reindex_shapes_for_body(body)
        return np.asarray(self._env._render())

    def close(self) -> None:
        """Frees the renderer."""
        self._env.close()
