"""Tuned parameters in the environments: what is written, what changes, and what is refused."""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

import numpy as np
import pytest

from robots.control.actions import JointTarget
from robots.errors import HandoffError
from robots.franka import find_robot
from sim.engines.mujoco import MujocoConfig, MujocoEngine, build_model
from sim.make import EnvConfig, find_task, make_vec_env
from sim.scene.dynamics import ArmDynamics, DynamicsValue, check_dynamics, refuse_varying

FR3 = find_robot("fr3")
REACH = find_task("reach")


def dynamics(*values: tuple, **options) -> ArmDynamics:
    return ArmDynamics(
        values=tuple(
            DynamicsValue(what=what, joints=joints, value=v) for what, joints, v in values
        ),
        **options,
    )


def test_friction_and_armature_are_those_of_the_named_joints() -> None:
    tuned = dynamics(("friction", (2,), 0.4), ("armature", (1, 3), 0.2), ("viscous", (), 1.5))
    model = build_model(REACH, REACH.actions, tuned)
    dofs = [model.joint(name).dofadr[0] for name in FR3.joint_names]
    assert model.dof_frictionloss[dofs].tolist() == [0, 0.4, 0, 0, 0, 0, 0]
    assert model.dof_armature[dofs[0]] == model.dof_armature[dofs[2]] == 0.2
    assert model.dof_armature[dofs[1]] == FR3.armature
    assert model.dof_damping[dofs].tolist() == [1.5] * 7


def test_the_gain_of_all_joints_scales_the_cartesian_law_and_its_posture() -> None:
    nominal = build_model(REACH, REACH.actions)
    model = build_model(
        REACH, REACH.actions, dynamics(("stiffness", (), 1.5), ("damping", (), 2.0))
    )
    for name in ("impedance_x", "impedance_yaw", "posture_fr3_joint4"):
        before = nominal.actuator(name)
        after = model.actuator(name)
        assert after.gainprm[0] == 1.5 * before.gainprm[0]
        assert after.biasprm[1] == 1.5 * before.biasprm[1]
        assert after.biasprm[2] == 2.0 * before.biasprm[2]
    finger = model.actuator("gripper_finger_left")
    assert finger.gainprm[0] == nominal.actuator("gripper_finger_left").gainprm[0]


def test_the_gain_of_one_joint_needs_joint_actions() -> None:
    tuned = dynamics(("stiffness", (2,), 1.5))
    model = build_model(REACH, JointTarget(), tuned)
    assert model.actuator("impedance_fr3_joint2").gainprm[0] == 900.0
    assert model.actuator("impedance_fr3_joint1").gainprm[0] == 600.0
    with pytest.raises(HandoffError, match=r"Cartesian actions.*Tune the gain of all joints"):
        build_model(REACH, REACH.actions, tuned)


def test_a_payload_hangs_at_the_fingertips() -> None:
    plain = build_model(REACH, REACH.actions)
    model = build_model(REACH, REACH.actions, dynamics(("payload", (), 0.75)))
    assert model.body("payload").mass[0] == 0.75
    assert model.nq == plain.nq
    assert model.body_gravcomp[model.body("payload").id] == 0.0
    assert model.body_mass.sum() == pytest.approx(plain.body_mass.sum() + 0.75)
    held = build_model(
        REACH, REACH.actions, dynamics(("payload", (), 0.75), payload_compensated=True)
    )
    assert held.body_gravcomp[held.body("payload").id] == 1.0


def end_of_step(config: MujocoConfig) -> np.ndarray:
    engine = MujocoEngine(REACH, 1, config)
    engine.reset(np.array([0]), np.array([3]))
    engine.step(np.full((1, engine.action_spec.size), 0.8), np.array([True]))
    state = engine.qpos[0].copy()
    engine.close()
    return state


def test_no_values_change_nothing_and_friction_slows_the_arm() -> None:
    plain = end_of_step(MujocoConfig())
    np.testing.assert_array_equal(plain, end_of_step(MujocoConfig(dynamics=dynamics())))
    stuck = end_of_step(MujocoConfig(dynamics=dynamics(("friction", (), 50.0))))
    assert np.abs(stuck - plain).max() > 1e-3


def test_a_delay_adds_to_that_of_the_randomisation_and_stays_within_a_period() -> None:
    late = MujocoEngine(REACH, 2, MujocoConfig(dynamics=dynamics(("delay", (), 0.02))))
    # 0.02 s are 4 physics steps of 0.005 s.
    assert late.delay_steps(0.0, late.config.dynamics) == 4
    assert late.delay_steps(0.01, late.config.dynamics) == 6
    late.close()
    with pytest.raises(HandoffError, match=r"delay is 0.0600 s, expected less than .* 0.05 s"):
        MujocoEngine(REACH, 1, MujocoConfig(dynamics=dynamics(("delay", (), 0.06))))


def test_a_delayed_command_moves_the_arm_less_within_the_first_period() -> None:
    start = MujocoEngine(REACH, 1, MujocoConfig())
    start.reset(np.array([0]), np.array([3]))
    initial = start.qpos[0].copy()
    start.close()
    prompt = np.abs(end_of_step(MujocoConfig()) - initial).max()
    late = np.abs(end_of_step(MujocoConfig(dynamics=dynamics(("delay", (), 0.03)))) - initial).max()
    assert late < 0.8 * prompt


def test_dynamics_are_an_option_of_the_engines_that_have_them() -> None:
    tuned = dynamics(("friction", (), 0.5))
    env = make_vec_env(EnvConfig(task="reach", dynamics=tuned), 1)
    assert env.engine.model.dof_frictionloss[:7].tolist() == [0.5] * 7  # type: ignore[attr-defined]
    env.close()
    with pytest.raises(HandoffError, match=r"the engine gym ignores \['dynamics'\]"):
        make_vec_env(EnvConfig(engine="gym", task="CartPole-v1", dynamics=tuned), 1)


@pytest.mark.parametrize(
    ("tuned", "message"),
    [
        (dynamics(robot="panda"), "tuned for the robot 'panda', the environments have 'fr3'"),
        (dynamics(("friction", (8,), 0.1)), "friction of joint 8, expected .* from 1 to 7"),
        (dynamics(("friction", (), -0.1)), "friction of all joints is -0.1 Nm"),
        (dynamics(("delay", (1,), 0.1)), r"delay has the joints \[1\]"),
        (dynamics(("payload", (), 0.1), ("payload", (), 0.2)), r"\['payload'\] given more than"),
        (dynamics(("damping", (), float("nan"))), "damping of all joints is nan"),
    ],
)
def test_impossible_dynamics_are_refused(tuned: ArmDynamics, message: str) -> None:
    with pytest.raises(HandoffError, match=message):
        check_dynamics(tuned, FR3)


UNCERTAIN = ArmDynamics(
    values=(
        DynamicsValue(what="stiffness", value=0.8, low=0.6, high=1.0),
        DynamicsValue(what="friction", value=0.5, low=0.2, high=0.9),
        DynamicsValue(what="payload", value=0.5),
        DynamicsValue(what="delay", value=0.02, low=0.0, high=0.04),
    )
)


def test_a_drawn_value_is_between_its_bounds_and_one_without_bounds_stays() -> None:
    drawn = UNCERTAIN.drawn(np.array([0.0, 0.5, 0.9, 1.0]))
    assert [item.value for item in drawn.values] == pytest.approx([0.6, 0.55, 0.5, 0.04])
    assert UNCERTAIN.varies
    assert not drawn.varies


def test_every_episode_has_the_dynamics_of_its_seed() -> None:
    engine = MujocoEngine(REACH, 3, MujocoConfig(dynamics=UNCERTAIN))
    engine.reset(np.array([0, 1, 2]), np.array([5, 6, 5]))
    nominal = build_model(REACH, REACH.actions)
    dof = nominal.joint("fr3_joint2").dofadr[0]
    friction = [model.dof_frictionloss[dof] for model in engine._models]
    gains = [
        model.actuator("impedance_x").gainprm[0] / nominal.actuator("impedance_x").gainprm[0]
        for model in engine._models
    ]
    assert friction[0] == friction[2] != friction[1]
    assert gains[0] == gains[2] != gains[1]
    assert all(0.2 <= value <= 0.9 for value in friction)
    assert all(0.6 <= value <= 1.0 for value in gains)
    assert [model.body("payload").mass[0] for model in engine._models] == [0.5] * 3
    assert engine._delay[0] == engine._delay[2]
    # The draw of an episode does not depend on the one before it.
    engine.reset(np.array([1]), np.array([5]))
    assert engine._models[1].dof_frictionloss[dof] == friction[0]
    assert (
        engine._models[1].actuator("impedance_x").gainprm[0]
        == engine._models[0].actuator("impedance_x").gainprm[0]
    )


def test_a_restored_episode_has_its_dynamics_again() -> None:
    engine = MujocoEngine(REACH, 2, MujocoConfig(dynamics=UNCERTAIN))
    engine.reset(np.array([0, 1]), np.array([5, 6]))
    dof = engine.model.joint("fr3_joint2").dofadr[0]
    state = engine.save()
    own = float(engine._models[0].dof_frictionloss[dof])
    engine.restore(np.array([1]), {name: rows[[0]] for name, rows in state.items()})
    assert engine._models[1].dof_frictionloss[dof] == own
    assert engine._delay[1] == engine._delay[0]


def test_bounds_beside_their_value_and_delays_that_may_be_too_long_are_refused() -> None:
    with pytest.raises(HandoffError, match=r"bounds \[0\.6, 0\.7\]"):
        check_dynamics(
            ArmDynamics(values=(DynamicsValue(what="friction", value=0.5, low=0.6, high=0.7),)),
            FR3,
        )
    late = DynamicsValue(what="delay", value=0.01, low=0.0, high=0.2)
    with pytest.raises(HandoffError, match=r"delay is 0\.2000 s"):
        MujocoEngine(REACH, 1, MujocoConfig(dynamics=ArmDynamics(values=(late,))))


def test_an_engine_that_cannot_draw_refuses_bounds() -> None:
    with pytest.raises(HandoffError, match=r"warp reach: .*spread=0"):
        refuse_varying(UNCERTAIN, "warp reach")
    refuse_varying(UNCERTAIN.drawn(np.zeros(4)), "warp reach")
