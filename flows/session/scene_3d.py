"""Shows the compiled MuJoCo model as a 3-D scene in the browser, with viser.

viser listens at the loopback address only; the console's server forwards pages that presented its
token.
"""

from __future__ import annotations

import contextlib
import io
import socket
from typing import Any

import numpy as np

VIEW_FROM, VIEW_AT = (1.5, 0.9, 0.9), (0.4, 0.0, 0.25)
"""Initial camera position and target [m], base frame."""
_COLLISION_GROUP = 3
"""First geom group that is hidden: as in MuJoCo's viewer, groups from 3 on are collision shapes."""


class Scene3D:
    """A viser server that displays one model.

    Args:
        model: mujoco.MjModel.
    """

    def __init__(self, model: Any) -> None:
        import viser

        self._model = model
        # viser takes the next port if one is in use, but reports it only after pages may connect.
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        # Suppress the address that viser prints: pages connect through the console.
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
        """Updates the pose of every body.

        Args:
            position_B3: positions of all bodies of the model [m], base frame.
            quaternion_B4: orientations, wxyz.
        """
        with self._server.atomic():
            for body, frame in self._bodies.items():
                frame.position = position_B3[body]
                frame.wxyz = quaternion_B4[body]

    def close(self) -> None:
        """Stops the server."""
        self._server.stop()

    def _add_geoms(self, body: int) -> int:
        """Adds the visible geoms of a body; returns their number."""
        model, added = self._model, 0
        first = int(model.body_geomadr[body])
        for geom in range(first, first + int(model.body_geomnum[body])):
            mesh = None if model.geom_group[geom] >= _COLLISION_GROUP else geom_mesh(model, geom)
            colour = geom_colour(model, geom)
            if mesh is None or colour[3] == 0.0:
                continue
            self._server.scene.add_mesh_simple(
                f"/body{body}/geom{geom}",
                vertices=mesh[0],
                faces=mesh[1],
                color=np.round(255.0 * colour[:3]).astype(np.uint8),
                opacity=None if colour[3] >= 1.0 else float(colour[3]),
                position=model.geom_pos[geom],
                wxyz=model.geom_quat[geom],
            )
            added += 1
        return added


def geom_mesh(model: Any, geom: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Vertices (V, 3) [m] and faces (F, 3) of a geom in its own frame; None for an unbounded geom,
    such as a plane."""
    import mujoco
    import trimesh

    # The compiled mujoco module has no type stubs.
    kinds: Any = getattr(mujoco, "mjtGeom")  # noqa: B009
    size, kind = np.asarray(model.geom_size[geom], dtype=np.float64), int(model.geom_type[geom])
    if kind == kinds.mjGEOM_MESH:
        return asset_mesh(model, int(model.geom_dataid[geom]))
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
        # Centre the capsule: in older versions of trimesh its origin is at the lower end.
        solid.apply_translation(-solid.bounds.mean(axis=0))
    else:
        return None
    return np.asarray(solid.vertices, dtype=np.float32), np.asarray(solid.faces, dtype=np.uint32)


def asset_mesh(model: Any, mesh: int) -> tuple[np.ndarray, np.ndarray]:
    """Vertices (V, 3) [m] and faces (F, 3) of a mesh asset of the model."""
    vertex, face = int(model.mesh_vertadr[mesh]), int(model.mesh_faceadr[mesh])
    vertices = model.mesh_vert[vertex : vertex + int(model.mesh_vertnum[mesh])]
    faces = model.mesh_face[face : face + int(model.mesh_facenum[mesh])]
    return np.array(vertices, dtype=np.float32), np.array(faces, dtype=np.uint32)


def geom_colour(model: Any, geom: int) -> np.ndarray:
    """(4,) RGBA in [0, 1] of a geom, from its material if it has one."""
    material = int(model.geom_matid[geom])
    return np.array(
        model.geom_rgba[geom] if material < 0 else model.mat_rgba[material], dtype=np.float64
    )
