"""ManiSkill's batch met on its device, by the stand-in of `tests.sim.engines.test_maniskill`: balls
that are pushed."""

import pytest
import torch

from policies.rl.collection.device_episodes import DeviceEnv
from robots.errors import HandoffError
from sim.device import maniskill
from sim.device.maniskill import DeviceManiSkillEnv
from sim.engines.maniskill_task import ManiSkillConfig
from sim.make import EnvConfig, make_device_env, make_vec_env
from tests.sim.engines.test_maniskill import Batch

CUDA = ManiSkillConfig(sim_backend="physx_cuda")
LIMIT = 3


@pytest.fixture
def balls(monkeypatch: pytest.MonkeyPatch) -> DeviceManiSkillEnv:
    monkeypatch.setattr(maniskill, "find_task", lambda name, task: (Batch, 50))
    monkeypatch.setattr(
        maniskill, "environment_arguments", lambda config, width: {"num_envs": width}
    )
    monkeypatch.setattr(
        maniskill, "make_environment", lambda name, make, arguments: make(**arguments)
    )
    made = DeviceManiSkillEnv("Balls", 3, CUDA, max_steps=LIMIT)
    made.refill(range(10, 10 + made.waiting))
    made.begin()
    return made


def places(balls: DeviceManiSkillEnv) -> list[float]:
    return [round(place, 4) for place in balls.observation()["extra/ball_pos"][:, 0].tolist()]


def test_they_implement_the_interface_that_fine_tuning_expects(balls: DeviceManiSkillEnv) -> None:
    assert isinstance(balls, DeviceEnv)


def test_environments_that_begin_together_are_drawn_from_the_first_seed(
    balls: DeviceManiSkillEnv,
) -> None:
    assert places(balls) == [10.0, 10.1, 10.2]
    assert balls.taken() == 3
    balls.reset_ended(torch.tensor([False, True, True]))
    assert places(balls) == [10.0, 13.0, 13.1]
    assert balls.taken() == 5


def test_a_chunk_ends_where_the_task_is_solved_and_the_environment_shows_its_end(
    balls: DeviceManiSkillEnv,
) -> None:
    action = torch.tensor([[[60.0], [60.0]], [[1.0], [2.0]], [[0.0], [95.0]]])
    led = balls.step(action)
    # Beyond 100 it is solved; the stand-in pays the place.
    assert places(balls) == [130.0, 13.1, 105.2]
    torch.testing.assert_close(
        led.reward_NH, torch.tensor([[70.0, 130.0], [11.1, 13.1], [10.2, 105.2]]).double()
    )
    assert led.success_N.tolist() == [True, False, True]
    assert led.terminated_N.tolist() == [True, False, True]
    after = balls.step(torch.full((3, 2, 1), 5.0))
    assert places(balls) == [130.0, 18.1, 105.2], "what has ended stays as it was"
    assert after.executed_N.tolist() == [0, 1, 0]
    assert after.truncated_N.tolist() == [False, True, False]
    assert after.reward_NH[0].tolist() == [0.0, 0.0]


def test_an_action_that_is_not_finite_is_reported_by_check(
    balls: DeviceManiSkillEnv,
) -> None:
    balls.step(torch.tensor([[[0.0]], [[0.0]], [[torch.nan]]]))
    with pytest.raises(
        HandoffError, match=r"environments \[2\] had actions or rewards that are not finite"
    ):
        balls.check()


def test_what_the_batch_cannot_do_is_refused(balls: DeviceManiSkillEnv) -> None:
    with pytest.raises(HandoffError, match="groups of 3 environments with one initial state"):
        balls.begin(size=3)
    balls._seeds = [1]
    with pytest.raises(HandoffError, match="2 environments begin and 1 seeds are left"):
        balls.reset_ended(torch.tensor([False, True, True]))
    with pytest.raises(HandoffError, match="sim_backend 'physx_cpu', expected 'physx_cuda'"):
        DeviceManiSkillEnv("Balls", 3, ManiSkillConfig(sim_backend="physx_cpu"))


def test_environments_on_a_device_are_made_from_a_configuration_that_says_so() -> None:
    config = EnvConfig(engine="maniskill", task="Balls", resident=True)
    with pytest.raises(HandoffError, match="on_end reset"):
        make_device_env(config, 1)
    with pytest.raises(
        HandoffError, match="resident: true is for fine-tuning and for PPO, FastTD3"
    ):
        make_vec_env(config, 1)
    with pytest.raises(HandoffError, match="engine mujoco ignores \\['resident'\\]"):
        make_device_env(EnvConfig(resident=True), 1)
