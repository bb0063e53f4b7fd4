"""Domain randomisation: what is drawn, what is written, and that an environment depends on its seed
alone."""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

import copy
from typing import Any

import mujoco
import numpy as np
import pytest

from robots.errors import HandoffError
from sim.engines.mujoco import MujocoConfig, MujocoEngine
from sim.make import EnvConfig, find_task, make_vec_env
from sim.scene.dynamics import ArmDynamics, DynamicsValue
from sim.scene.randomize import Range, apply, delay_of, draw, drawn_ranges

XML = """
<mujoco>
  <visual><headlight ambient="0.4 0.4 0.4" diffuse="0.2 0.2 0.2"/></visual>
  <asset>
    <texture name="sky" type="skybox" builtin="flat" rgb1="0.8 0.4 0.2" width="4" height="24"/>
    <material name="paint" rgba="1 0 0 1"/>
  </asset>
  <worldbody>
    <light name="key" diffuse="0.5 0.5 0.5"/>
    <camera name="front" pos="1 0 0.5" fovy="40"/>
    <geom name="painted" size="0.1" pos="5 0 0" material="paint" contype="0" conaffinity="0"/>
    <geom name="floor" type="plane" size="1 1 0.1" friction="0.8 0.005 0.0001"/>
    <body name="box" pos="0 0 1"><freejoint name="box"/>
      <geom name="box" type="box" size="0.1 0.1 0.1" mass="2" friction="0.6 0.005 0.0001"/></body>
    <body name="ball" pos="1 0 1"><freejoint name="ball"/><geom name="ball" size="0.1" mass="1"/></body>
    <body name="door" pos="2 0 1"><joint name="door" damping="3"/><geom name="door" size="0.1" mass="1"/></body>
  </worldbody>
  <contact>
    <pair geom1="floor" geom2="box" friction="0.5 0.5 0.005 0.0001 0.0001"/>
    <pair geom1="floor" geom2="ball" friction="0.4 0.4 0.005 0.0001 0.0001"/>
  </contact>
  <actuator>
    <position name="servo_door" joint="door" kp="100" kv="10"/>
  </actuator>
</mujoco>
"""


def written(item: Range, value: float | tuple[float, float, float]) -> tuple[Any, Any]:
    """The model before, and a copy of it with the value written."""
    base = mujoco.MjModel.from_xml_string(XML)
    model = copy.copy(base)
    values = np.broadcast_to(np.asarray(value, dtype=float), (1, 3))
    apply((item,), values, base, model)
    return base, model


def test_draws_fill_their_ranges_and_stay_inside() -> None:
    ranges = (
        Range(what="mass", names=("box",), low=0.5, high=2.0),
        Range(what="delay", low=0.0, high=0.03),
    )
    rng = np.random.default_rng(0)
    draws = np.array([draw(ranges, rng)[:, 0] for _ in range(2000)])
    assert draws[:, 0].min() >= 0.5
    assert draws[:, 0].max() <= 2.0
    # Means of uniform draws: 1.25 and 0.015, deviations 0.43 and 0.0087 over sqrt(2000).
    assert (
        np.abs(draws.mean(axis=0) - [1.25, 0.015]) < 3.3 * np.array([0.43, 0.0087]) / np.sqrt(2000)
    ).all()
    assert abs(np.corrcoef(draws.T)[0, 1]) < 0.08


def test_a_range_of_one_value_is_that_value() -> None:
    assert (
        draw((Range(what="mass", names=("box",), low=1.5, high=1.5),), np.random.default_rng(0))[
            0, 0
        ]
        == 1.5
    )


def test_bounds_that_are_swapped_are_refused() -> None:
    with pytest.raises(HandoffError, match=r"randomisation of mass: range \[2.0, 0.5\]"):
        draw((Range(what="mass", names=("box",), low=2.0, high=0.5),), np.random.default_rng(0))


def test_own_ranges_replace_those_of_the_task_and_fix_a_quantity() -> None:
    light = Range(what="mass", names=("cube",), low=0.25, high=0.25)
    engine = MujocoEngine(find_task("pick_cube"), 2, MujocoConfig(ranges=(light,)))
    engine.reset(np.arange(2), np.arange(2))
    own = engine.model.body("cube").mass[0]
    assert [model.body("cube").mass[0] for model in engine._models] == [0.25 * own] * 2


def test_an_episode_is_that_of_the_member_of_a_family_that_its_seed_names() -> None:
    ranges = (
        Range(what="mass", names=("cube",), low=1.0, high=3.0),
        Range(what="delay", low=0.0, high=0.04),
    )
    values = (DynamicsValue(what="payload", value=0.4, low=0.0, high=0.8),)
    config = MujocoConfig(
        ranges=ranges,
        dynamics=ArmDynamics(values=values),
        places=((0.0, 0.0, 0.0), (0.5, 0.5, 0.25), (1.0, 1.0, 1.0)),
    )
    engine = MujocoEngine(find_task("pick_cube"), 3, config)
    engine.reset(np.arange(3), np.array([300, 7, 2]))
    own = engine.model.body("cube").mass[0]
    masses = [model.body("cube").mass[0] / own for model in engine._models]
    payloads = [model.body("payload").mass[0] for model in engine._models]
    delays = engine._delay * engine.model.opt.timestep
    np.testing.assert_allclose(masses, [1.0, 2.0, 3.0])
    np.testing.assert_allclose(payloads, [0.0, 0.2, 0.8])
    np.testing.assert_allclose(delays, [0.0, 0.02, 0.04])


def test_places_that_do_not_fit_what_varies_are_refused() -> None:
    task = find_task("pick_cube")
    ranges = (Range(what="mass", names=("cube",), low=1.0, high=3.0),)
    with pytest.raises(HandoffError, match="places of 1 members, but neither ranges nor dynamics"):
        MujocoEngine(task, 1, MujocoConfig(places=((0.5,),)))
    with pytest.raises(HandoffError, match="a member has 2 places, expected 1"):
        MujocoEngine(task, 1, MujocoConfig(ranges=ranges, places=((0.5,), (0.5, 0.5))))
    with pytest.raises(HandoffError, match=r"warp ignores \['places'\]"):
        make_vec_env(EnvConfig(engine="warp", task="pick_cube", places=((0.5,),)), 1)


def test_ranges_beside_the_task_s_or_of_what_only_pictures_show_are_refused() -> None:
    task = find_task("pick_cube")
    mass = Range(what="mass", names=("cube",), low=0.5, high=2.0)
    assert drawn_ranges(task.ranges, (), True, "here") == task.ranges
    assert drawn_ranges(task.ranges, (), False, "here") == ()
    assert drawn_ranges(task.ranges, (mass,), False, "here") == (mass,)
    with pytest.raises(HandoffError, match="here: randomized draws from the ranges of the task"):
        drawn_ranges(task.ranges, (mass,), True, "here")
    shown = Range(what="light", names=("key",), low=0.5, high=2.0)
    with pytest.raises(HandoffError, match=r"ranges of \['light'\], which only pictures show"):
        drawn_ranges(task.ranges, (mass, shown), False, "here")


def test_mass_scales_with_its_inertia_and_leaves_other_bodies() -> None:
    base, model = written(Range(what="mass", names=("box",)), 1.5)
    assert model.body("box").mass[0] == 3.0
    np.testing.assert_allclose(model.body("box").inertia, 1.5 * base.body("box").inertia)
    assert model.body("ball").mass[0] == 1.0


def test_friction_scales_sliding_only_and_the_pairs_of_the_geom() -> None:
    _, model = written(Range(what="friction", names=("box",)), 0.5)
    np.testing.assert_allclose(model.geom("box").friction, [0.3, 0.005, 0.0001])
    np.testing.assert_allclose(model.geom("floor").friction, [0.8, 0.005, 0.0001])
    np.testing.assert_allclose(model.pair_friction[0], [0.25, 0.25, 0.005, 0.0001, 0.0001])
    np.testing.assert_allclose(model.pair_friction[1], [0.4, 0.4, 0.005, 0.0001, 0.0001])


def test_gain_scales_the_stiffness_on_both_sides_of_the_servo_and_not_its_damping() -> None:
    _, model = written(Range(what="gain", names=("servo_*",)), 1.2)
    np.testing.assert_allclose(model.actuator_gainprm[0, 0], 120.0)
    np.testing.assert_allclose(model.actuator_biasprm[0, :3], [0.0, -120.0, -10.0])


def test_damping_reaches_actuators_and_joints_by_name() -> None:
    _, model = written(Range(what="damping", names=("servo_door",)), 2.0)
    np.testing.assert_allclose(model.actuator_biasprm[0, :3], [0.0, -100.0, -20.0])
    assert model.dof_damping[-1] == 3.0
    _, model = written(Range(what="damping", names=("door",)), 2.0)
    assert model.dof_damping[-1] == 6.0
    np.testing.assert_allclose(model.actuator_biasprm[0, 2], -10.0)


def test_a_camera_is_moved_along_each_axis_by_its_own_draw() -> None:
    _, model = written(
        Range(what="camera", names=("front",), low=-0.1, high=0.1), (0.01, -0.02, 0.03)
    )
    np.testing.assert_allclose(model.cam("front").pos, [1.01, -0.02, 0.53])


def test_light_is_never_brighter_than_white() -> None:
    _, model = written(Range(what="light", names=("key",)), 3.0)
    np.testing.assert_allclose(model.light("key").diffuse, 1.0)


def test_writing_twice_starts_from_the_base_model_each_time() -> None:
    base = mujoco.MjModel.from_xml_string(XML)
    model, item = copy.copy(base), (Range(what="mass", names=("box",)),)
    apply(item, np.full((1, 3), 3.0), base, model)
    apply(item, np.full((1, 3), 0.5), base, model)
    assert model.body("box").mass[0] == 1.0
    assert base.body("box").mass[0] == 2.0


def test_delays_add_up_and_change_no_model() -> None:
    late = Range(what="delay", low=0.0, high=1.0)
    ranges = (late, Range(what="mass", names=("box",)), late)
    assert delay_of(ranges, np.array([[0.01] * 3, [5.0] * 3, [0.02] * 3])) == pytest.approx(0.03)
    assert delay_of((), np.zeros((0, 3))) == 0.0
    base, model = written(ranges[0], 0.5)
    assert model.opt.timestep == base.opt.timestep


@pytest.mark.parametrize("what", ["mass", "friction", "gain", "camera", "light", "damping"])
def test_an_unknown_name_is_refused_with_those_there_are(what: Any) -> None:
    with pytest.raises(
        HandoffError, match=rf"{what} of nothing: the scene of this task has no such .*; it has "
    ):
        written(Range(what=what, names=("nothing",)), 1.0)


def test_an_environment_is_drawn_from_its_seed_and_not_from_its_place() -> None:
    config = MujocoConfig(randomized=True)
    many, one = (
        MujocoEngine(find_task("pick_cube"), 4, config),
        MujocoEngine(find_task("pick_cube"), 1, config),
    )
    many.reset(np.arange(4), np.array([3, 1, 4, 15]))
    one.reset(np.arange(1), np.array([4]))
    rng = np.random.default_rng(0)
    for _ in range(15):
        action = rng.uniform(-1, 1, (1, many.action_spec.size))
        many.step(np.repeat(action, 4, axis=0), np.ones(4, dtype=bool))
        one.step(action, np.ones(1, dtype=bool))
    np.testing.assert_array_equal(many.qpos[2], one.qpos[0])
    assert not np.array_equal(many.qpos[1], many.qpos[2])


def test_randomisation_leaves_the_starts_as_they_are_and_changes_what_follows() -> None:
    plain, varied = (
        MujocoEngine(find_task("reach"), 3),
        MujocoEngine(find_task("reach"), 3, MujocoConfig(randomized=True)),
    )
    for engine in (plain, varied):
        engine.reset(np.arange(3), np.arange(3))
    np.testing.assert_array_equal(plain.qpos, varied.qpos)
    for _ in range(5):
        for engine in (plain, varied):
            engine.step(np.ones((3, 3)), np.ones(3, dtype=bool))
    assert (np.abs(plain.qpos - varied.qpos).max(axis=1) > 1e-4).all()


def test_a_new_episode_draws_new_values() -> None:
    engine = MujocoEngine(find_task("pick_cube"), 1, MujocoConfig(randomized=True))
    draws = []
    for seed in (1, 2, 1):
        engine.reset(np.zeros(1, dtype=int), np.array([seed]))
        draws.append(engine.save()["draws"].copy())
    np.testing.assert_array_equal(draws[0], draws[2])
    assert (draws[0] != draws[1]).all()


def test_a_restored_environment_has_the_parameters_of_the_saved_one() -> None:
    engine = MujocoEngine(find_task("pick_cube"), 2, MujocoConfig(randomized=True))
    engine.reset(np.arange(2), np.array([1, 2]))
    state = engine.save()
    # Environment 1 becomes a copy of environment 0: from then on both do the same.
    engine.restore(np.array([1]), {name: array[:1] for name, array in state.items()})
    for _ in range(10):
        engine.step(np.full((2, engine.action_spec.size), 0.7), np.ones(2, dtype=bool))
    np.testing.assert_array_equal(engine.qpos[0], engine.qpos[1])


@pytest.mark.parametrize("task", [find_task("reach"), find_task("pick_cube")])
def test_every_declared_range_is_a_change_around_the_models_own_value(task: Any) -> None:
    for item in task.ranges:
        neutral = {"delay": 0.0, "camera": 0.0}.get(item.what, 1.0)
        assert item.low <= neutral <= item.high
        assert item.low < item.high


def test_a_camera_turns_about_its_own_axes() -> None:
    item = Range(what="camera_rotation", names=("front",))
    base, model = written(item, (0.0, 0.0, 0.2))
    turn = np.array([np.cos(0.1), 0.0, 0.0, np.sin(0.1)])
    expected = np.empty(4)
    mujoco.mju_mulQuat(expected, base.cam_quat[0], turn)
    np.testing.assert_allclose(model.cam_quat[0], expected)
    _, still = written(item, 0.0)
    np.testing.assert_array_equal(still.cam_quat, base.cam_quat)


def test_the_field_of_view_is_scaled() -> None:
    _, model = written(Range(what="field_of_view", names=("front",)), 1.1)
    assert model.cam_fovy[0] == pytest.approx(44.0)


def test_a_light_takes_a_colour_and_the_headlight_is_one_of_them() -> None:
    _, model = written(Range(what="light_colour", names=("key", "headlight")), (1.0, 0.5, 3.0))
    np.testing.assert_allclose(model.light_diffuse[0], [0.5, 0.25, 1.0])
    np.testing.assert_allclose(model.vis.headlight.ambient, [0.4, 0.2, 1.0], rtol=1e-6)
    np.testing.assert_allclose(model.vis.headlight.diffuse, [0.2, 0.1, 0.6], rtol=1e-6)
    base, model = written(Range(what="light", names=("headlight",)), 0.5)
    np.testing.assert_allclose(model.vis.headlight.ambient, [0.2] * 3, rtol=1e-6)
    np.testing.assert_array_equal(model.light_diffuse, base.light_diffuse)


def test_a_geom_and_the_background_take_a_colour() -> None:
    base, model = written(Range(what="colour", names=("floor",)), (0.5, 1.0, 4.0))
    geom = base.geom("floor").id
    np.testing.assert_allclose(model.geom_rgba[geom], [0.25, 0.5, 1.0, 1.0])
    base, model = written(Range(what="background", names=("sky",)), (1.0, 0.5, 2.0))
    before = base.tex_data.reshape(-1, 3)
    after = model.tex_data.reshape(-1, 3)
    assert before[0].tolist() == [204, 102, 51]
    assert after[0].tolist() == [204, 51, 102]
    np.testing.assert_array_equal(after[:, 0], before[:, 0])
    np.testing.assert_array_equal(after[:, 1], before[:, 1] // 2)


def test_the_colour_of_a_material_is_refused() -> None:
    with pytest.raises(HandoffError, match="from the material 'paint'"):
        written(Range(what="colour", names=("painted",)), 0.5)
