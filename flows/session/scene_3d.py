"""The scene in three dimensions, beside the pictures: viser shows the compiled MuJoCo model, body
by body.

viser listens at this machine's loopback only; the console's server lets those in who showed its
token.
"""

from __future__ import annotations

import contextlib
import io
import socket
from typing import Any

import numpy as np

VIEW_FROM, VIEW_AT = (1.5, 0.9, 0.9), (0.4, 0.0, 0.25)
"""Where a page looks from at first, and at what [m], base."""
_UNSEEN_GROUP = 3
"""Groups of geoms from here on are collision shapes, as MuJoCo's viewer has it."""


class Scene3D:
    """A viser server that shows one model.

    Args:
        model: mujoco.MjModel.
    """

    def __init__(self, model: Any) -> None:
        import viser

        self._model = model
        # viser, too, takes the next port where one is taken, but does not tell it before pages may
        # come.
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        # It prints its address, which is nobody's business: pages come by another way.
        with contextlib.redirect_stdout(io.StringIO()):
            self._server = viser.ViserServer(host="127.0.0.1", port=self.port, verbose=False)
        self.port = self._server.get_port()
        self._server.gui.configure_theme(show_logo=False, show_share_button=False)
        self._server.gui.main_panel.minimize()
        scene = self._server.scene
        scene.set_up_direction("+z")
        scene.add_grid(
            "/ground",
            width=3.0,
            height=3.0,
            cell_size=0.1,
            section_size=0.5,
            position=(0.0, 0.0, -0.001),
        )
        self._server.initial_camera.position = VIEW_FROM
        self._server.initial_camera.look_at = VIEW_AT
        self._bodies = {}
        for body in range(1, model.nbody):
            frame = scene.add_frame(f"/body{body}", show_axes=False)
            if self._add_geoms(body):
                self._bodies[body] = frame

    def show(self, position_B3: np.ndarray, quaternion_B4: np.ndarray) -> None:
        """Puts every body where it is.

        Args:
            position_B3: of all bodies of the model [m], base.
            quaternion_B4: wxyz.
        """
        with self._server.atomic():
            for body, frame in self._bodies.items():
                frame.position = position_B3[body]
                frame.wxyz = quaternion_B4[body]

    def close(self) -> None:
        """Ends the server."""
        self._server.stop()

    def _add_geoms(self, body: int) -> int:
        """Adds what of a body can be seen; returns how many parts that is."""
        model, added = self._model, 0
        first = int(model.body_geomadr[body])
        for geom in range(first, first + int(model.body_geomnum[body])):
            solid = None if model.geom_group[geom] >= _UNSEEN_GROUP else solid_of(model, geom)
            colour = colour_of(model, geom)
            if solid is None or colour[3] == 0.0:
                continue
            self._server.scene.add_mesh_simple(
                f"/body{body}/geom{geom}",
                vertices=solid[0],
                faces=solid[1],
                color=np.round(255.0 * colour[:3]).astype(np.uint8),
                opacity=None if colour[3] >= 1.0 else float(colour[3]),
                position=model.geom_pos[geom],
                wxyz=model.geom_quat[geom],
            )
            added += 1
        return added


def solid_of(model: Any, geom: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Vertices (V, 3) [m] and faces (F, 3) of a geom in its own frame; None for what has no end,
    such as a plane."""
    import mujoco
    import trimesh

    # The compiled mujoco module has no type stubs.
    kinds: Any = getattr(mujoco, "mjtGeom")  # noqa: B009
    size, kind = np.asarray(model.geom_size[geom], dtype=np.float64), int(model.geom_type[geom])
    if kind == kinds.mjGEOM_MESH:
        return mesh_of(model, int(model.geom_dataid[geom]))
    if kind == kinds.mjGEOM_BOX:
        solid = trimesh.creation.box(extents=2.0 * size)
    elif kind == kinds.mjGEOM_SPHERE:
        solid = trimesh.creation.icosphere(subdivisions=2, radius=size[0])
    elif kind == kinds.mjGEOM_ELLIPSOID:
        solid = trimesh.creation.icosphere(subdivisions=2, radius=1.0)
        solid.apply_scale(size)
    elif kind == kinds.mjGEOM_CYLINDER:
        solid = trimesh.creation.cylinder(radius=size[0], height=2.0 * size[1], sections=24)
    elif kind == kinds.mjGEOM_CAPSULE:
        solid = trimesh.creation.capsule(height=2.0 * size[1], radius=size[0], count=[16, 16])
        # Older versions of trimesh began a capsule at its lower end.
        solid.apply_translation(-solid.bounds.mean(axis=0))
    else:
        return None
    return np.asarray(solid.vertices, dtype=np.float32), np.asarray(solid.faces, dtype=np.uint32)


def mesh_of(model: Any, mesh: int) -> tuple[np.ndarray, np.ndarray]:
    """Vertices (V, 3) [m] and faces (F, 3) of one of the model's meshes."""
    vertex, face = int(model.mesh_vertadr[mesh]), int(model.mesh_faceadr[mesh])
    vertices = model.mesh_vert[vertex : vertex + int(model.mesh_vertnum[mesh])]
    faces = model.mesh_face[face : face + int(model.mesh_facenum[mesh])]
    return np.array(vertices, dtype=np.float32), np.array(faces, dtype=np.uint32)


def colour_of(model: Any, geom: int) -> np.ndarray:
    """(4,) RGBA in [0, 1] of a geom: its material's where it has one."""
    material = int(model.geom_matid[geom])
    return np.array(
        model.geom_rgba[geom] if material < 0 else model.mat_rgba[material], dtype=np.float64
    )
