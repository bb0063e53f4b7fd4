"""Draws a simulated environment for people at the console, in a process of its own, so that drawing
delays nothing."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from flows.session.config import HilWorld
from real.deploy.cameras import frame
from robots.errors import HandoffError
from robots.processes import end_with_parent
from robots.wire.policy import pack, unpack

if TYPE_CHECKING:
    from real.console.process import OpenConsole
    from sim.engines.mujoco import MujocoEngine

HEIGHT, WIDTH = 240, 320
"""Of the pictures [px]."""
WAIT_SECONDS = 0.5
"""Between two attempts to find the console."""


def scene_of(engine: MujocoEngine) -> Callable[[], bytes]:
    """Tells where everything stands in the first world."""

    def scene() -> bytes:
        goal = engine.view.goal
        return pack(
            {
                "qpos": engine.qpos[0].astype(np.float64),
                "goal": np.asarray(goal[0], dtype=np.float64),
            }
        )

    return scene


@contextmanager
def drawn(world: HilWorld, console: OpenConsole, *, pictures: bool = True) -> Iterator[None]:
    """Draws what the session's world tells, in a process of its own, as long as the block runs.

    Args:
        world: whose scene the session tells.
        console: that is open.
        pictures: draws what its cameras would see, beside the 3-D scene; not where real cameras
            look on.

    On a computer beside an arm, which has no simulator, nothing is drawn: the page shows the real
    cameras.
    """
    if find_spec("mujoco") is None:
        yield
        return
    context = multiprocessing.get_context("spawn")
    arguments = (world, console.uri, console.robot_token, pictures)
    process = context.Process(
        target=_draw_for_ever, args=arguments, name="handoff-view", daemon=True
    )
    process.start()
    try:
        yield
    finally:
        process.terminate()
        process.join(5.0)


def _draw_for_ever(world: HilWorld, uri: str, token: str, pictures: bool) -> None:
    """The process: connects again and again, until it is ended."""
    from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage

    end_with_parent()
    view, pause = _View(world, pictures), threading.Event()
    while True:
        with suppress(OSError, ConnectionClosed, InvalidHandshake, InvalidMessage, HandoffError):
            _draw(view, uri, token)
        pause.wait(WAIT_SECONDS)


class _View:
    """Draws scenes of one world: pictures where there is OpenGL, and the bodies of a 3-D scene."""

    def __init__(self, world: HilWorld, pictures: bool) -> None:
        import mujoco

        from flows.session.scene_3d import Scene3D
        from sim.engines.mujoco import build_model
        from sim.make import find_task
        from sim.scene.cameras import Cameras, CamerasConfig

        task = find_task(world.task, world.rate_hz, world.robot)
        self._mujoco: Any = mujoco
        self._model = build_model(task, task.actions)
        self._data = self._mujoco.MjData(self._model)
        goals = [body for body in range(self._model.nbody) if self._model.body(body).name == "goal"]
        self._goal = int(self._model.body_mocapid[goals[0]]) if goals else -1
        self._cameras: Cameras | None = None
        # A machine without OpenGL: the session goes on, the page says that there are no pictures.
        with suppress(HandoffError):
            options = CamerasConfig(height=HEIGHT, width=WIDTH)
            self._cameras = Cameras(self._model, options) if pictures else None
        self.scene = Scene3D(self._model)

    def frames(self, packed: bytes) -> Iterator[bytes]:
        """Shows the 3-D scene, then one picture after another as it travels to the pages."""
        scene = unpack(packed)
        self._data.qpos[:] = scene["qpos"]
        if self._goal >= 0:
            self._data.mocap_pos[self._goal] = scene["goal"][:3]
        self._mujoco.mj_kinematics(self._model, self._data)
        self.scene.show(self._data.xpos, self._data.xquat)
        if self._cameras is not None:
            images = self._cameras.render([self._model], scene["qpos"][None], scene["goal"][None])
            for name, image in images.items():
                yield frame(name.removeprefix("image_"), image[0])


def _draw(view: _View, uri: str, token: str) -> None:
    from websockets.sync.client import connect

    with connect(uri, max_size=2**20, compression=None) as connection:
        connection.send(
            pack({"kind": "hello", "role": "camera", "token": token, "scene": view.scene.port})
        )
        newest = connection.recv()
        while True:
            # Only the newest counts: whoever draws more slowly than the world goes skips.
            with suppress(TimeoutError):
                while True:
                    newest = connection.recv(timeout=0.0)
            for one in view.frames(newest if isinstance(newest, bytes) else b""):
                connection.send(one)
            newest = connection.recv()
