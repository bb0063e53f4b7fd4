"""Renders a simulated environment for the console in a separate process, so that rendering does not
delay control."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from flows.session.config import HilEnvConfig
from real.cameras.camera_process import frame
from robots.errors import HandoffError
from robots.processes import KeptProcess
from robots.wire.policy import pack, unpack

if TYPE_CHECKING:
    from real.console.process import OpenConsole
    from sim.engines.mujoco import MujocoEngine

END_SECONDS = 5.0
"""Time limit for the process to end after it was asked to [s]."""
FRAME_SECONDS = 1.0 / 15.0
"""Shortest time from one set of images to the next [s]."""
NICENESS = 10
"""Lowered priority of the process: on few cores its software rendering must not delay the arm."""
REFRESH_SECONDS = 0.3
"""Time after which images of a scene that does not change are sent again [s]."""
WAIT_SECONDS = 0.5
"""Time between two attempts to connect to the console [s]."""


def scene_reader(engine: MujocoEngine) -> Callable[[], bytes]:
    """Returns a function that packs the state of the first environment's scene."""

    def scene() -> bytes:
        goal = engine.view.goal
        return pack(
            {
                "qpos": engine.qpos[0].astype(np.float64),
                "goal": np.asarray(goal[0], dtype=np.float64),
            }
        )

    return scene


def described_cameras() -> dict[str, Any]:
    """What the robot's process tells the console about cameras, beside those that announce
    themselves: that a process which draws will name its own."""
    return {} if find_spec("mujoco") is None else {"cameras": None}


@contextmanager
def scene_viewer(env: HilEnvConfig, console: OpenConsole, *, images: bool = True) -> Iterator[None]:
    """Renders the session's environment in a separate process while the context lasts; one that is
    killed is started again.

    Without a simulator, as on the computer of a real arm, nothing is rendered: the page shows the
    real cameras.

    Args:
        env: environment of the session.
        console: an open console.
        images: also renders camera images, in addition to the 3-D scene; off where real cameras
            are used.
    """
    if find_spec("mujoco") is None:
        yield
        return
    from real.console.process import without_robot_token

    arguments = (env, console.uri, console.camera_token, images)
    with without_robot_token():
        viewer = KeptProcess("handoff-view", _run_viewer, arguments, seconds=END_SECONDS)
    try:
        yield
    finally:
        viewer.end()


def _run_viewer(env: HilEnvConfig, uri: str, token: str, images: bool) -> None:
    """Main function of the viewer's process: reconnects until it is terminated."""
    from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage

    from real.console.process import ROBOT_VARIABLE

    # A viewer that is started again is not to have the robot's token either. Ctrl-C at the terminal
    # ends the session, which then ends this process.
    os.environ.pop(ROBOT_VARIABLE, None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Nothing here has to be put in order, and an import may swallow an exception.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # viser says on the terminal of the session that its server has stopped.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.nice(NICENESS)
    pause = threading.Event()
    try:
        view = SceneView(env, images)
    except Exception:
        # Nobody is to wait for pictures that will not come.
        with suppress(OSError, ConnectionClosed, InvalidHandshake, InvalidMessage, HandoffError):
            _announce_nothing(uri, token)
        raise
    while True:
        with suppress(OSError, ConnectionClosed, InvalidHandshake, InvalidMessage, HandoffError):
            _draw(view, uri, token)
        pause.wait(WAIT_SECONDS)


class SceneView:
    """Renders scenes of one environment: camera images, where OpenGL is available (without it a
    session goes on, and the page says that there are none), and a 3-D scene."""

    def __init__(self, env: HilEnvConfig, images: bool) -> None:
        import mujoco

        from flows.session.scene_3d import Scene3D
        from flows.session.viewed_scene import PersonsCameras, grasp_site, viewed_model
        from sim.make import find_task

        self._mujoco: Any = mujoco
        self._model = viewed_model(find_task(env.task, env.rate_hz, env.robot))
        self._data = self._mujoco.MjData(self._model)
        self._grasp = grasp_site(self._model)
        self._cameras = PersonsCameras.if_possible(self._model) if images else None
        self.scene = Scene3D(self._model)

    @property
    def cameras(self) -> tuple[str, ...]:
        """Names of the cameras whose images are rendered."""
        return () if self._cameras is None else self._cameras.names

    def frames(self, packed: bytes) -> Iterator[bytes]:
        """Updates the 3-D scene, then yields the camera images, encoded for the pages."""
        from flows.session.viewed_scene import HIDDEN, placed

        scene, data = unpack(packed), self._data
        data.qpos[:] = scene["qpos"]
        data.mocap_pos[:] = placed(self._model, scene["goal"], HIDDEN)
        self._mujoco.mj_kinematics(self._model, data)
        grasp = HIDDEN if self._grasp < 0 else data.site_xpos[self._grasp].copy()
        data.mocap_pos[:] = placed(self._model, scene["goal"], grasp)
        self._mujoco.mj_kinematics(self._model, data)
        self.scene.show(data.xpos, data.xquat)
        if self._cameras is not None:
            for name, image in self._cameras.images(data.qpos, scene["goal"], grasp):
                yield frame(name, image)


def _draw(view: SceneView, uri: str, token: str) -> None:
    from websockets.sync.client import connect

    with connect(uri, max_size=2**20, compression=None, proxy=None) as connection:
        hello = {"kind": "hello", "role": "camera", "token": token, "cameras": view.cameras}
        connection.send(pack({**hello, "scene": view.scene.port}))
        newest = connection.recv()
        while True:
            began = time.monotonic()
            # Render only the newest scene: if rendering is slower than the environment, scenes are
            # skipped.
            with suppress(TimeoutError):
                while True:
                    newest = connection.recv(timeout=0.0)
            for image in view.frames(newest if isinstance(newest, bytes) else b""):
                connection.send(image)
            time.sleep(max(0.0, began + FRAME_SECONDS - time.monotonic()))
            # While nothing moves, the same images show that this process still draws.
            with suppress(TimeoutError):
                newest = connection.recv(timeout=REFRESH_SECONDS)


def _announce_nothing(uri: str, token: str) -> None:
    """Tells the console that this process has no cameras."""
    from websockets.sync.client import connect

    with connect(uri, compression=None, proxy=None) as connection:
        connection.send(pack({"kind": "hello", "role": "camera", "token": token, "cameras": ()}))
