"""Appearance of a scene: what an episode draws, and that physics never depends on it."""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

import mujoco
import numpy as np
import pytest

from robots.errors import HandoffError
from sim.engines.mujoco import MujocoConfig, MujocoEngine, build_model
from sim.make import TASKS, EnvConfig, find_task, make_vec_env
from sim.scene.appearance import Appearance, apply_look, draw_look, look_of, reset_look
from sim.scene.cameras import CamerasConfig
from sim.scene.clutter import MARGIN, distractor_ids
from sim.scene.randomize import Range

CAMERAS = CamerasConfig(names=("front", "wrist"), height=48, width=64)
RANGES = (
    Range(what="camera_rotation", names=("front",), low=-0.05, high=0.05),
    Range(what="light_colour", names=("key", "headlight"), low=0.8, high=1.2),
    Range(what="background", names=("backdrop",), low=0.5, high=1.0),
)


def scene(task: str = "pick_cube", distractors: int = 0) -> tuple[mujoco.MjModel, mujoco.MjData]:
    found = find_task(task)
    model = build_model(found, found.actions, distractors=distractors)
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    return model, data


def drawn(appearance: Appearance, seed: int, task: str = "pick_cube"):
    model, data = scene(task, appearance.distractors)
    look = draw_look(appearance, model, data, find_task(task).robot.link_names[0], seed)
    return model, data, look


def test_cameras_beside_the_arm_are_displaced_by_exactly_the_length() -> None:
    model, _, look = drawn(Appearance(camera_shift=0.04), 3)
    length = dict(
        zip(
            [model.camera(i).name for i in range(model.ncam)],
            np.linalg.norm(look.shift, axis=1),
            strict=True,
        )
    )
    assert length.pop("wrist") == 0.0
    assert list(length.values()) == pytest.approx([0.04] * len(length))
    _, _, wrist = drawn(Appearance(camera_shift=0.04, shifted=("wrist",)), 3)
    assert np.linalg.norm(wrist.shift, axis=1).tolist() == pytest.approx(
        [0.04 * (model.camera(i).name == "wrist") for i in range(model.ncam)]
    )


def test_the_direction_is_the_seed_s_whatever_the_length() -> None:
    _, _, near = drawn(Appearance(camera_shift=0.01), 3)
    _, _, far = drawn(Appearance(camera_shift=0.04, clutter=2, light=0.5), 3)
    _, _, other = drawn(Appearance(camera_shift=0.04), 4)
    np.testing.assert_allclose(far.shift, 4.0 * near.shift)
    assert np.abs(other.shift - far.shift).max() > 1e-3


def test_more_distractors_leave_the_first_ones() -> None:
    _, _, two = drawn(Appearance(clutter=2), 5)
    _, _, four = drawn(Appearance(clutter=4), 5)
    np.testing.assert_array_equal(four.clutter[:2], two.clutter)


def test_the_number_of_distractors_is_drawn_between_its_bounds() -> None:
    shown = set()
    root = find_task("pick_cube").robot.link_names[0]
    model, data = scene(distractors=3)
    for seed in range(40):
        look = draw_look(Appearance(clutter=1, clutter_high=3), model, data, root, seed)
        shown.add(int(look.clutter[:, -1].sum()))
    assert shown == {1, 2, 3}


@pytest.mark.parametrize("task", TASKS)
def test_distractors_are_off_the_objects_of_every_task(task: str) -> None:
    model, data, look = drawn(Appearance(clutter=4), 11, task)
    robot = model.body(find_task(task).robot.link_names[0]).id
    assert look.clutter[:, -1].tolist() == [1.0] * 4
    for geom in range(model.ngeom):
        body = model.geom_bodyid[geom]
        if body == 0 or model.body_rootid[body] == robot:
            continue
        distance = np.linalg.norm(look.clutter[:, :2] - data.geom_xpos[geom, :2], axis=1)
        assert distance.min() > MARGIN


def test_an_appearance_is_its_numbers_and_is_taken_back() -> None:
    appearance = Appearance(camera_shift=0.02, light=0.5, clutter=3, ranges=RANGES)
    model, _, look = drawn(appearance, 7)
    again = look_of(appearance, model, look.flat())
    np.testing.assert_array_equal(again.flat(), look.flat())
    base, changed = scene(distractors=3)[0], scene(distractors=3)[0]
    apply_look(appearance, look, changed)
    assert np.linalg.norm(changed.cam_pos - base.cam_pos, axis=1).max() == pytest.approx(0.02)
    np.testing.assert_allclose(changed.light("fill").diffuse, 0.5 * base.light("fill").diffuse)
    assert (changed.geom_rgba[distractor_ids(changed), 3] == 1.0).all()
    reset_look(base, changed)
    for name in ("cam_pos", "cam_quat", "light_diffuse", "geom_rgba", "tex_data"):
        np.testing.assert_array_equal(getattr(changed, name), getattr(base, name))
    np.testing.assert_array_equal(changed.vis.headlight.ambient, base.vis.headlight.ambient)


def test_swapped_bounds_physical_ranges_and_unknown_names_are_refused() -> None:
    with pytest.raises(HandoffError, match="clutter <= clutter_high"):
        Appearance(clutter=3, clutter_high=1)
    with pytest.raises(HandoffError, match=r"ranges of \['mass'\]"):
        Appearance(ranges=(Range(what="mass", names=("cube",)),))
    with pytest.raises(HandoffError, match=r"cameras \['side'\], the scene has"):
        drawn(Appearance(camera_shift=0.01, shifted=("side",)), 0)
    model, _, look = drawn(Appearance(ranges=RANGES[:1]), 0)
    unknown = Appearance(ranges=(Range(what="camera_rotation", names=("side",)),))
    with pytest.raises(HandoffError, match="of side: the scene of this task has no such camera; "):
        apply_look(unknown, look, model)


def test_an_appearance_that_nothing_sees_is_refused() -> None:
    with pytest.raises(HandoffError, match="an appearance without cameras"):
        MujocoEngine(find_task("pick_cube"), 1, MujocoConfig(appearance=Appearance()))
    with pytest.raises(HandoffError, match=r"warp ignores \['appearance'\]"):
        make_vec_env(EnvConfig(engine="warp", appearance=Appearance()), 1)


def engine(appearance: Appearance | None, *, randomized: bool = False) -> MujocoEngine:
    config = MujocoConfig(cameras=CAMERAS, appearance=appearance, randomized=randomized)
    return MujocoEngine(find_task("pick_cube"), 2, config)


def played(appearance: Appearance | None, *, randomized: bool = False) -> tuple[np.ndarray, dict]:
    """States of 12 steps of the scripted expert, and the last observation."""
    simulated = engine(appearance, randomized=randomized)
    simulated.reset(np.arange(2), np.array([3, 4]))
    states = []
    for _ in range(12):
        simulated.step(simulated.expert_action(), np.ones(2, dtype=bool))
        states.append(simulated.save()["physics"])
    observation = simulated.read().observation
    simulated.close()
    return np.array(states), observation


@pytest.mark.needs("opengl")
@pytest.mark.parametrize("randomized", [False, True])
def test_states_are_the_same_with_and_without_distractors(randomized: bool) -> None:
    plain, seen = played(None, randomized=randomized)
    cluttered, changed = played(Appearance(clutter=6, camera_shift=0.02), randomized=randomized)
    np.testing.assert_array_equal(cluttered, plain)
    assert (changed["image_front"] != seen["image_front"]).any()


@pytest.mark.needs("opengl")
def test_an_appearance_that_changes_nothing_gives_the_same_pictures() -> None:
    _, seen = played(None)
    _, same = played(Appearance())
    for name in ("image_front", "image_wrist"):
        np.testing.assert_array_equal(same[name], seen[name])


def starts(appearance: Appearance) -> dict[str, np.ndarray]:
    simulated = engine(appearance)
    simulated.reset(np.arange(2), np.array([3, 4]))
    observation = simulated.read().observation
    simulated.close()
    return observation


@pytest.mark.needs("opengl")
def test_a_displaced_camera_and_dim_lights_are_seen() -> None:
    plain = starts(Appearance())
    moved = starts(Appearance(camera_shift=0.04))
    assert (moved["image_front"] != plain["image_front"]).any(axis=(1, 2, 3)).all()
    np.testing.assert_array_equal(moved["image_wrist"], plain["image_wrist"])
    dim = starts(Appearance(light=0.5))
    assert dim["image_wrist"].mean() < 0.7 * plain["image_wrist"].mean()


@pytest.mark.needs("opengl")
def test_a_saved_state_brings_its_appearance_along() -> None:
    appearance = Appearance(camera_shift=0.03, clutter=4, ranges=RANGES)
    simulated = engine(appearance)
    simulated.reset(np.arange(2), np.array([3, 4]))
    state = simulated.save()
    first = simulated.read().observation
    simulated.reset(np.arange(2), np.array([8, 9]))
    other = simulated.read().observation["image_front"]
    simulated.restore(np.arange(2), state)
    again = simulated.read().observation
    simulated.reset(np.array([1]), np.array([3]))
    moved = simulated.read().observation["image_front"]
    simulated.close()
    np.testing.assert_array_equal(again["image_front"], first["image_front"])
    assert (other != first["image_front"]).any()
    # The seed gives the same picture in any slot.
    np.testing.assert_array_equal(moved[1], first["image_front"][0])
