"""`handoff deploy` with a policy that has a gripper: a person at the console beside a simulated arm
at a task's table."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.deployment import session as deploying
from flows.deployment.config import DeployTaskSession
from flows.deployment.session_tables.gripper_table import GripperTable
from real.clock import PacedClock
from real.console.server import ConsoleConfig
from real.deploy.field_trackers import field_trackers
from real.motion.watchdog import WatchdogConfig
from robots.contract import Contract
from robots.control.actions import CartesianDelta
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.spec import FieldSpec
from sim.twin.task_world import TaskWorld
from sim.twin.twin import TwinConfig, start_twin
from tests.flows.console_session import (
    PATIENT,
    Session,
    ended_by,
    ended_episodes,
    labelled,
    sent_to,
    stepped,
)
from tests.flows.deployment.test_session import held_for
from tests.flows.deployment.test_task_table import contract_for, towards
from tests.real.console.pages import until
from tests.real.fakes import FakeArm, FakeClock
from tests.real.onnx_models import save_linear_policy

FIELDS = ("grasp_pose", "target_offset", "goal")


def reaching(folder: Path) -> Path:
    """A policy of `reach` that moves to the goal."""
    stated = contract_for("reach", FIELDS)
    save_linear_policy(folder / "policy.onnx", stated, towards(stated, "goal"))
    return folder


def resting(folder: Path, **changes: Any) -> Contract:
    """A policy of `reach` that observes its arm alone, and goes down."""
    stated = replace(contract_for("reach", FIELDS[:2]), **changes)
    size = stated.observation_size + 1
    weights = np.zeros((size, stated.action.shape[0]))
    # Downwards, at a third of the largest step.
    weights[-1, 2] = -0.3
    save_linear_policy(folder / "policy.onnx", stated, weights)
    return stated


def deployed(out: Path, bundle: Path, session: DeployTaskSession, here: Any) -> None:
    deploying.deploy(session, bundle, out, PATIENT, say=sent_to(here))


def on(host: str, **changes: Any) -> DeployTaskSession:
    return DeployTaskSession(twin=TwinConfig(host=host), **changes)


def height(steps: dict[str, np.ndarray]) -> np.ndarray:
    return steps["grasp_pose"][:, 2]


def test_a_policy_solves_its_task_beside_a_person(tmp_path: Path) -> None:
    running = Session(deployed, tmp_path, reaching(tmp_path), on("127.0.83.1"))
    page = running.page()
    with contextlib.closing(page.socket):
        page.go()
        ended_episodes(page, 1)
        ended_by(page)
        running.ended()
    store = EpisodeStore.open(tmp_path / "store.zarr", "r")
    about, steps = store.metadata(0), store.read(0, "policy")
    assert (about["success"], about["ended_by"], about["mode"]) == (True, "task", "live")
    assert (about["robot"], about["interventions"]) == ("fr3 twin", 0.0)
    assert np.linalg.norm(steps["grasp_pose"][-1, :3] - steps["goal"][-1]) < 0.03
    assert steps["qpos"].shape[0] == len(steps["action"])
    report = json.loads((tmp_path / "latency.json").read_text())
    assert report["episodes"] == 1
    assert report["inference_ms"]["number"] == len(about["inference_ms"])


def test_a_shadowed_policy_moves_nothing_and_its_thoughts_are_recorded(tmp_path: Path) -> None:
    resting(tmp_path)
    running = Session(deployed, tmp_path, tmp_path, on("127.0.83.2", shadow=True))
    page = running.page()
    with contextlib.closing(page.socket):
        page.go()
        stepped(page, 10)
        stepped(page, 10, "ArrowUp")
        labelled(page, "KeyQ", 1)
        ended_by(page)
        running.ended()
    store = EpisodeStore.open(tmp_path / "store.zarr", "r")
    about, steps = store.metadata(0), store.read(0, "policy")
    mine = steps["intervention"].astype(bool).ravel()
    assert about["mode"] == "shadow"
    np.testing.assert_allclose(steps["action_proposed"][:, 2], -0.3, atol=1e-6)
    assert np.abs(steps["action"][~mine]).max() == 0.0
    assert height(steps).min() > 0.44, "the policy would have lowered the arm"
    moved = steps["grasp_pose"][mine][-1, 0] - steps["grasp_pose"][mine][0, 0]
    assert moved > 0.01, "the person moves the arm forward"
    off = np.abs(steps["action"] - steps["action_proposed"])[mine].mean()
    assert about["disagreement"] == pytest.approx(off, rel=1e-3)


def test_a_dry_run_is_ten_times_as_slow(tmp_path: Path) -> None:
    resting(tmp_path)
    loop = replace(DeployTaskSession().loop, max_steps=4)
    running = Session(deployed, tmp_path, tmp_path, on("127.0.83.3", speed=0.1, loop=loop))
    page = running.page()
    with contextlib.closing(page.socket):
        page.go()
        ended_episodes(page, 1)
        ended_by(page)
        running.ended()
    store = EpisodeStore.open(tmp_path / "store.zarr", "r")
    stated = contract_for("reach", FIELDS[:2])
    assert isinstance(stated.steps, CartesianDelta)
    about, steps = store.metadata(0), store.read(0, "policy")
    assert about["mode"] == "dry-run"
    assert store.schema.streams["policy"].rate_hz == pytest.approx(0.1 * stated.rate_hz)
    period = 10.0 / stated.rate_hz
    np.testing.assert_allclose(np.diff(steps["step_time"].ravel()), period, atol=1.1e-3)
    robot = store.read(0, "robot", ["base_T_ee"])["base_T_ee"][:, 2, 3]
    # In its first step the arm is led into the workspace of the steps.
    lowered = robot[600] - robot[-1]
    step = 0.3 * stated.steps.translation
    assert 2.0 * step < lowered < 3.5 * step
    speed = -np.diff(robot[1000::100]).min() / 0.1
    assert speed < 1.5 * step / period


@contextlib.contextmanager
def lab(host: str) -> Iterator[None]:
    """An arm whose time passes by itself, in step with its client."""
    with start_twin(TwinConfig(host=host), partial(TaskWorld, "reach")) as twin:
        twin.reset(0)
        closing, clock = threading.Event(), PacedClock(twin)

        def run() -> None:
            while not closing.is_set():
                clock.advance(0.005)

        passing = threading.Thread(target=run)
        passing.start()
        try:
            yield
        finally:
            closing.set()
            passing.join()


def test_an_arm_at_an_address_goes_the_same_way(tmp_path: Path) -> None:
    """The path of a real arm: it rises and moves to its start, and the person judges."""
    resting(tmp_path)
    usual = DeployTaskSession()
    session = replace(
        usual,
        host="127.0.83.4",
        arm=replace(usual.arm, realtime="ignore", move_dynamics=0.5),
        loop=replace(usual.loop, watchdog=WatchdogConfig(fault_seconds=10.0)),
    )
    with lab("127.0.83.4"):
        running = Session(deployed, tmp_path, tmp_path, session)
        page = running.page()
        with contextlib.closing(page.socket):
            page.go()
            stepped(page, 5)
            labelled(page, "KeyS", 1)
            until(lambda: "Put the objects back" in held_for(page))
            ended_by(page)
            running.ended()
    store = EpisodeStore.open(tmp_path / "store.zarr", "r")
    about = store.metadata(0)
    assert (about["robot"], about["label"], about["labelled_by"]) == (
        "fr3 at 127.0.83.4",
        "success",
        "ada",
    )
    assert "qpos" not in store.schema.streams["policy"].fields


def test_a_policy_that_observes_objects_is_refused_at_an_arm(tmp_path: Path) -> None:
    with pytest.raises(HandoffError, match="observes goal, which the arm does not measure"):
        deploying.deploy(
            DeployTaskSession(host="127.0.83.5"),
            reaching(tmp_path),
            tmp_path / "out",
            ConsoleConfig(port=0),
        )
    assert not (tmp_path / "out").exists()


def test_what_a_policy_cannot_be_told_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HandoffError, match="the policy of reach takes none"):
        deploying.deploy(
            DeployTaskSession(instruction="touch the red one"),
            reaching(tmp_path),
            tmp_path / "out",
            ConsoleConfig(port=0),
        )


def test_unknown_actions_are_refused_by_name(tmp_path: Path) -> None:
    resting(tmp_path, action_interface="as_recorded", steps=None)
    with pytest.raises(HandoffError, match="'as_recorded'; a session of reach supports"):
        deploying.deploy(DeployTaskSession(), tmp_path, tmp_path / "out", ConsoleConfig(port=0))


def test_the_options_follow_the_task() -> None:
    assert isinstance(deploying.session_of("pick_cube", ["lift=0.05"]), DeployTaskSession)
    with pytest.raises(HandoffError, match="lift"):
        deploying.session_of("push_t", ["lift=0.05"])
    with pytest.raises(HandoffError, match=r"tracker"):
        deploying.session_of("pick_cube", ["tracker.uri=ws://127.0.0.1:1"])


def test_a_real_arm_runs_while_a_key_is_held_and_a_simulated_one_by_itself() -> None:
    real = DeployTaskSession(host="172.16.0.2")
    assert deploying.holds_to_run(real)
    assert not deploying.holds_to_run(replace(real, hold_to_run=False))
    assert not deploying.holds_to_run(replace(real, shadow=True))
    assert not deploying.holds_to_run(DeployTaskSession())
    assert deploying.holds_to_run(DeployTaskSession(hold_to_run=True))


def test_a_session_holds_the_arm_when_the_key_is_released(tmp_path: Path) -> None:
    resting(tmp_path)
    running = Session(deployed, tmp_path, tmp_path, on("127.0.83.7", hold_to_run=True))
    page = running.page()
    with contextlib.closing(page.socket):
        stepped(page, 4, "Enter")
        until(lambda: "released Enter" in held_for(page))
        labelled(page, "KeyQ", 1)
        ended_by(page)
        running.ended()
    store = EpisodeStore.open(tmp_path / "store.zarr", "r")
    assert store.metadata(0)["label"] == "failure"
    assert store.metadata(0)["held_seconds"] > 0.0


def test_the_page_says_what_is_to_be_done_and_what_the_policy_was_given() -> None:
    stated = contract_for("reach", FIELDS)
    simulated = deploying._described(DeployTaskSession(instruction="touch it"), stated)
    assert simulated["brief"].endswith(".")
    assert simulated["instruction"] == "touch it"
    assert deploying._described(DeployTaskSession(host="172.16.0.2"), stated) == {}


@pytest.mark.parametrize(
    ("option", "mode"),
    [({"shadow": True}, "shadow"), ({"speed": 0.1}, "dry-run"), ({}, None)],
)
def test_the_page_says_where_the_policy_does_not_simply_act(
    option: dict[str, Any], mode: str | None
) -> None:
    session = DeployTaskSession(host="172.16.0.2", **option)
    assert deploying._described(session, contract_for("reach", FIELDS)).get("mode") == mode


class SwitchHost:
    """A simulated table whose task has a goal of its own, of one number."""

    robot, kind, manual_reset = "fr3 twin", "twin", False

    def scene(self) -> dict[str, np.ndarray]:
        return {"qpos": np.zeros(9), "goal": np.array([0.7, 0.0, 0.0])}

    def objects(self) -> dict[str, np.ndarray]:
        return {"goal": np.array([0.7], np.float32)}


def test_a_tasks_own_goal_is_observed_beside_the_scene() -> None:
    """The scene's goal, of three numbers, took its place, and a policy of `flip_switch` was refused
    its observation at the first step."""
    goal = FieldSpec(shape=(1,), unit="rad")
    stated = replace(contract_for("reach", FIELDS[:2]), observation={"goal": goal})
    host: Any = SwitchHost()
    with field_trackers({}, {}, stated) as trackers:
        table = GripperTable(on("127.0.83.9"), stated, host, trackers)
        observed = table.observe(FakeArm(FakeClock(), np.eye(4)).state())
    np.testing.assert_array_equal(observed["goal"], np.array([0.7], np.float32))
    np.testing.assert_array_equal(observed["goal_state"], [0.7, 0.0, 0.0])
