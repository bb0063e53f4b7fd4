"""Tables without a robot: everything that deploys an episode, with an arm that follows commands at
once and fails on request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np

from flows.deployment.cameras.pictures import ArmPictures
from flows.deployment.config import DeployConfig, DeploySession, DeployTaskConfig
from flows.deployment.push_t_table import PushTTable
from flows.deployment.session_tables.board import BoardTable
from flows.deployment.session_tables.session_table import SessionPictures
from flows.deployment.session_tables.supervised_run import SupervisedRun
from flows.deployment.task_table import TaskTable as TableOfTask
from flows.deployment.twin import DeployTable, TwinSetup, run_start
from real.console.console_operator import ConsoleOperator
from real.console.control.commands import Mode
from real.deploy.loop import LoopConfig
from real.deploy.person_motion import STEPS, BoardMotion
from real.deploy.supervision import Supervision, SupervisionConfig
from real.franka.state_recorder import StateRecorder
from real.motion.planar_space import Plane, PlaneConfig
from real.teleop.takeover import TakeoverConfig
from robots.contract import Contract
from robots.episodes.corrections import open_corrections
from robots.episodes.store import EpisodeStore
from robots.franka import find_robot
from robots.interfaces import no_progress
from robots.spec import FieldSpec
from sim.make import find_task
from tests.real.console.fake_connection import FakeConnection, set_command
from tests.real.fakes import FakeArm, FakeClock, contract

FR3 = find_robot("fr3")

START = np.array([0.25, 0.25])
TEE = np.array([0.1, 0.1, 0.0])
SEED = 7


class ConnectedArm(FakeArm):
    """A context manager with a state recorder, as `DrivenArm` is. Every event goes to `events`."""

    def __init__(
        self, clock: FakeClock, pose: np.ndarray, events: Callable[[str], None] = lambda event: None
    ) -> None:
        super().__init__(clock, pose)
        self.flange_T_ee = np.eye(4)
        self.recorder: StateRecorder | None = None
        self.events = events
        self.lost_from = np.inf
        """Robot time from which on no state reaches the recorder [s]."""
        self.leaving: BaseException | None = None
        """Raised on leaving the context."""
        self.stop_error: Exception | None = None

    def __enter__(self) -> ConnectedArm:
        return self

    def __exit__(self, *exception: object) -> None:
        self.events("left")
        if self.leaving is not None:
            raise self.leaving

    def preflight(self) -> Any:
        return self.state()

    def recover(self) -> None:
        self.fault_at = None

    def start(self) -> None:
        super().start()
        self.recorder = StateRecorder(60.0, FR3.num_joints)
        self.clock.on_tick.append(self.record)
        self.events("started")

    def stop(self) -> None:
        super().stop()
        self.events("stopped")
        if self.stop_error is not None:
            raise self.stop_error

    def record(self) -> None:
        if self.clock.now() > self.lost_from or self.recorder is None:
            return
        zero = np.zeros(7)
        state = SimpleNamespace(
            time=SimpleNamespace(to_msec=lambda: self.clock.ticks),
            q=FR3.q_home,
            dq=zero,
            q_d=FR3.q_home,
            tau_J=zero,
            tau_J_d=zero,
            tau_ext_hat_filtered=zero,
            O_T_EE=SimpleNamespace(matrix=self.pose),
            control_command_success_rate=1.0,
        )
        self.recorder(state, None, None, None, None)


class Table:
    """Clock and arm of an episode, a policy that keeps still, and the store."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "store.zarr"
        self.clock = FakeClock()
        self.arm = ConnectedArm(self.clock, np.eye(4))
        self.infer: Callable[[], None] = lambda: None
        """Called in every inference."""

    def at(self, seconds: float, call: Callable[[], None]) -> None:
        """Calls once, in the middle of a tick, at that robot time."""
        done: list[bool] = []

        def check() -> None:
            if not done and self.clock.now() >= seconds:
                done.append(True)
                call()

        self.clock.on_tick.append(check)

    def run(self) -> Any:
        """Runs the episode and closes the store."""
        raise NotImplementedError

    def stored(self) -> EpisodeStore:
        return EpisodeStore.open(self.path, "r")


class _Policy:
    def __init__(self, table: Table, contract: Contract, action: np.ndarray) -> None:
        self.table, self.contract, self.action = table, contract, action
        self.training_pictures: dict[str, Any] = {}
        self.tokenizer = None

    def __call__(self, observation: np.ndarray, noise: np.ndarray) -> np.ndarray:
        self.table.infer()
        return np.broadcast_to(
            np.float32(self.action), (1, self.contract.horizon, len(self.action))
        ).copy()


class TwinTable(Table):
    """The stage `deploy`, whose twin shares the table's clock."""

    policy: Any
    config: DeployConfig | DeployTaskConfig

    def call(self, name: str, *arguments: Any) -> Any:
        """Answers requests to the twin's world."""
        raise NotImplementedError

    def table(self) -> DeployTable:
        """The table that the stage creates from the configuration."""
        raise NotImplementedError

    def run(self) -> Any:
        twin: Any = SimpleNamespace(
            call=self.call,
            reset=partial(self.call, "reset"),
            now=self.clock.now,
            advance=self.clock.advance,
            wait_for_motion=lambda: None,
            gripper_actions=lambda: 0,
        )
        table = self.table()
        with EpisodeStore.create(self.path, table.schema(twin)) as store:
            # The arm is patched, so that nothing is driven.
            driver: Any = None
            setup = TwinSetup(self.config, self.policy, table, twin, store, driver)
            return run_start(setup, SEED, no_progress)


class PushTable(TwinTable):
    """The stage `deploy`: push-T at the twin."""

    def __init__(self, folder: Path, steps: int = 12) -> None:
        super().__init__(folder)
        self.arm.pose = Plane(PlaneConfig()).pose(START)
        self.policy: Any = _Policy(self, contract(), START)
        self.config = self.options = DeployConfig(loop=LoopConfig(max_steps=steps))

    def call(self, name: str, *arguments: Any) -> Any:
        return TEE.copy() if name == "tee_pose" else None

    def table(self) -> DeployTable:
        return PushTTable(self.options, self.policy.contract)


class TaskTable(TwinTable):
    """The stage `deploy` of a simulated task: reach at the twin."""

    FIELDS = ("grasp_pose", "target_offset", "goal")

    def __init__(self, folder: Path, steps: int = 24) -> None:
        super().__init__(folder)
        task = find_task("reach")
        task_contract = contract(
            task="reach",
            observation={name: task.observations[name].spec for name in self.FIELDS},
            action=FieldSpec(shape=(3,)),
            rate_hz=task.rate_hz,
            n_obs_steps=1,
            horizon=1,
            n_action_steps=1,
            action_interface="cartesian_delta",
            steps=task.actions,
        )
        self.arm.pose = FR3.chain.forward_kinematics(FR3.q_home)
        self.policy: Any = _Policy(self, task_contract, np.zeros(3))
        self.config = self.options = DeployTaskConfig(max_steps=steps)

    def call(self, name: str, *arguments: Any) -> Any:
        match name:
            case "object_observations":
                return {"goal": np.full(3, 0.3, np.float32)}
            case "scene":
                return np.zeros(9), np.zeros(0)
            case "outcome":
                return False, False
        return None

    def table(self) -> DeployTable:
        return TableOfTask(self.options, self.policy.contract)


class SupervisedTable(Table):
    """`handoff deploy`: push-T with a person at the console, who lets the policy act."""

    robot = "fake arm"
    kind = "twin"
    manual_reset = False
    person = "ada"
    about: Mapping[str, str] = MappingProxyType({"session": "2026-11-27T10:00:00Z"})

    def __init__(self, folder: Path, steps: int = 12) -> None:
        super().__init__(folder)
        plane = Plane(PlaneConfig())
        self.arm.pose = plane.pose(START)
        self.policy: Any = _Policy(self, contract(), START)
        self.session = DeploySession(loop=LoopConfig(max_steps=steps))
        self.line = FakeConnection()
        set_command(self.line, Mode.POLICY)
        settings = SupervisionConfig()
        operator = ConsoleOperator(
            STEPS, TakeoverConfig(), self.line, "ada", 10.0, lambda: b"", self.clock.now
        )
        self.supervision = Supervision(
            operator, settings, BoardMotion(plane, settings.speed, 10.0), operator.report_step
        )

    def place(self, seed: int) -> None:
        """Places nothing."""

    def ready(self, arm: Any, supervision: Any) -> bool:
        return True

    def pose(self) -> np.ndarray:
        return TEE.copy()

    def run(self) -> Any:
        setup: Any = SimpleNamespace(
            robot=self.robot,
            kind=self.kind,
            manual_reset=self.manual_reset,
            place=self.place,
            ready=self.ready,
            pose=self.pose,
            arm=lambda: self.arm,
            clock=lambda arm: self.clock,
        )
        board = BoardTable(self.session, self.policy.contract, setup)
        seen = SessionPictures(ArmPictures({}, {}), {}, lambda seed: None)
        with open_corrections(self.path, board.schema({})) as store:
            # The person is here, not at a console of another process.
            person: Any = self
            run = SupervisedRun(
                self.session, self.policy, self.policy.contract, board, seen, store, person
            )
            run.about = dict(self.about)
            return run.run(SEED)
