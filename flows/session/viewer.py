"""Renders a simulated environment for the console in a separate process, so that rendering does not
delay control."""

from __future__ import annotations

import os
import signal
import threading
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

HEIGHT, WIDTH = 240, 320
"""Size of the images [px]."""
END_SECONDS = 5.0
"""Time limit for the process to end after it was asked to [s]."""
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
    pause = threading.Event()
    try:
        view = _View(env, images)
    except Exception:
        # Nobody is to wait for pictures that will not come.
        with suppress(OSError, ConnectionClosed, InvalidHandshake, InvalidMessage, HandoffError):
            _announce_nothing(uri, token)
        raise
    while True:
        with suppress(OSError, ConnectionClosed, InvalidHandshake, InvalidMessage, HandoffError):
            _draw(view, uri, token)
        pause.wait(WAIT_SECONDS)


class _View:
    """Renders scenes of one environment: camera images, where OpenGL is available, and a 3-D
    scene."""

    def __init__(self, env: HilEnvConfig, images: bool) -> None:
        import mujoco

        from flows.session.scene_3d import Scene3D
        from sim.engines.mujoco import build_model
        from sim.make import find_task
        from sim.scene.cameras import Cameras, CamerasConfig

        task = find_task(env.task, env.rate_hz, env.robot)
        self._mujoco: Any = mujoco
        self._model = build_model(task, task.actions)
        self._data = self._mujoco.MjData(self._model)
        goals = [body for body in range(self._model.nbody) if self._model.body(body).name == "goal"]
        self._goal = int(self._model.body_mocapid[goals[0]]) if goals else -1
        self._cameras: Cameras | None = None
        # Without OpenGL the session continues; the page states that there are no images.
        with suppress(HandoffError):
            options = CamerasConfig(height=HEIGHT, width=WIDTH)
            self._cameras = Cameras(self._model, options) if images else None
        self.scene = Scene3D(self._model)

    @property
    def cameras(self) -> tuple[str, ...]:
        """Names of the cameras whose images are rendered."""
        return () if self._cameras is None else self._cameras.config.names

    def frames(self, packed: bytes) -> Iterator[bytes]:
        """Updates the 3-D scene, then yields the camera images, encoded for the pages."""
        scene = unpack(packed)
        self._data.qpos[:] = scene["qpos"]
        if self._goal >= 0:
            self._data.mocap_pos[self._goal] = scene["goal"][:3]
        self._mujoco.mj_kinematics(self._model, self._data)
        self.scene.show(self._data.xpos, self._data.xquat)
        if self._cameras is not None:
            rendered = self._cameras.render([self._model], scene["qpos"][None], scene["goal"][None])
            for name, image in rendered.items():
                yield frame(name.removeprefix("image_"), image[0])


def _draw(view: _View, uri: str, token: str) -> None:
    from websockets.sync.client import connect

    with connect(uri, max_size=2**20, compression=None, proxy=None) as connection:
        hello = {"kind": "hello", "role": "camera", "token": token, "cameras": view.cameras}
        connection.send(pack({**hello, "scene": view.scene.port}))
        newest = connection.recv()
        while True:
            # Render only the newest scene: if rendering is slower than the environment, scenes are
            # skipped.
            with suppress(TimeoutError):
                while True:
                    newest = connection.recv(timeout=0.0)
            for image in view.frames(newest if isinstance(newest, bytes) else b""):
                connection.send(image)
            # While nothing moves, the same images show that this process still draws.
            with suppress(TimeoutError):
                newest = connection.recv(timeout=REFRESH_SECONDS)


def _announce_nothing(uri: str, token: str) -> None:
    """Tells the console that this process has no cameras."""
    from websockets.sync.client import connect

    with connect(uri, compression=None, proxy=None) as connection:
        connection.send(pack({"kind": "hello", "role": "camera", "token": token, "cameras": ()}))
