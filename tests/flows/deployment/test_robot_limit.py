"""One holder per arm among the computers of a Prefect server, and in a session."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from flows.deployment import robot_limit
from flows.deployment import session as deploying
from flows.deployment.arms import held_for_session
from flows.deployment.config import DeployConfig, DeploySession, DeployTaskConfig
from flows.deployment.robot_limit import held_arm, spoken
from flows.deployment.session_tables.board import SimulatedSetup
from real.console.server import ConsoleConfig
from real.deploy.tracked_field import TrackerConfig
from real.driver.driver import Driver
from real.franka.config import FrankaConfig
from real.franka.kept_faults import keep_fault
from real.franka.slot import robot_slot
from robots.errors import HandoffError, SafetyError
from tests.real.fakes import others_can_take
from tests.real.onnx_models import save_policy

HOST = "192.0.2.7"
"""An address for documentation: no robot is there, and none is asked."""
_NAMES = count()


def no_note(text: str) -> None:
    """A session that says nothing."""


@pytest.fixture
def name(prefect_server: str) -> str:
    """A name of an arm that the server does not know yet."""
    return f"fr3-{next(_NAMES)}"


@pytest.fixture
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(robot_limit, "prefect_server", lambda: None)


def slots(name: str) -> tuple[int, int]:
    """Slots of the arm's limit on the server, and how many are taken."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        found = client.read_global_concurrency_limit_by_name(f"robot-{name}")
    return found.limit, found.active_slots


def create(name: str, limit: int, active: bool = True) -> None:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate

    with get_client(sync_client=True) as client:
        client.create_global_concurrency_limit(
            GlobalConcurrencyLimitCreate(name=f"robot-{name}", limit=limit, active=active)
        )


@contextmanager
def another_computer(name: str) -> Iterator[None]:
    """Another computer, which has another address of the arm and so another lock file."""
    with held_arm("192.0.2.99", "fr3", name=name):
        yield


def test_a_missing_limit_is_created_with_one_slot_and_said(name: str, prefect_server: str) -> None:
    notes: list[str] = []
    with held_arm(HOST, "fr3", name=name, progress=spoken(notes.append)):
        assert slots(name) == (1, 1)
    assert slots(name) == (1, 0)
    assert notes == [f"created the limit robot-{name} of one holder at {prefect_server}"]
    with held_arm(HOST, "fr3", name=name, progress=spoken(notes.append)):
        assert slots(name) == (1, 1)
    assert len(notes) == 1


def test_an_arm_that_another_computer_holds_is_refused(name: str) -> None:
    with (
        another_computer(name),
        pytest.raises(
            HandoffError,
            match=rf"fr3 at {HOST}: in use on another computer \(limit robot-{name} at",
        ),
        held_arm(HOST, "fr3", name=name),
    ):
        pass
    assert others_can_take(HOST)


def test_a_wait_for_another_computer_ends_with_its_hold(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(robot_limit, "POLL_SECONDS", 0.1)
    notes: list[str] = []
    began, waited = threading.Event(), threading.Event()

    def elsewhere() -> None:
        with another_computer(name):
            began.set()
            waited.wait(60.0)

    def say(note: str) -> None:
        notes.append(note)
        waited.set()

    holder = threading.Thread(target=elsewhere)
    holder.start()
    assert began.wait(60.0)
    with held_arm(HOST, "fr3", name=name, patience=60.0, progress=spoken(say)):
        assert slots(name) == (1, 1)
    holder.join()
    assert notes == [f"waiting for fr3 at {HOST}: in use on another computer (limit robot-{name})"]


@contextmanager
def broken_renewals(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Lets every renewal of a lease fail; the event is set once Prefect has given up."""
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.concurrency import _leases

    tried = count(1)
    given_up = threading.Event()

    def fail(*arguments: Any, **options: Any) -> None:
        if next(tried) >= _leases._RENEWAL_MAX_ATTEMPTS:
            given_up.set()
        raise ConnectionError("the server is gone")

    with monkeypatch.context() as patch:
        patch.setattr(SyncPrefectClient, "renew_concurrency_lease", fail)
        patch.setattr(_leases, "_RENEWAL_RETRY_BASE_DELAY", 0.001)
        patch.setattr(_leases, "_RENEWAL_RETRY_MAX_DELAY", 0.001)
        yield given_up


def motion(given_up: threading.Event) -> list[int]:
    """A motion that goes on for a while after the renewal has failed."""
    ticks: list[int] = []
    assert given_up.wait(60.0)
    for tick in range(100):
        time.sleep(0.005)
        ticks.append(tick)
    return ticks


def test_a_lease_that_cannot_be_renewed_is_logged_and_stops_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("prefect.concurrency")
    monkeypatch.setattr(logger, "propagate", True)
    logger.addHandler(caplog.handler)
    try:
        with (
            broken_renewals(monkeypatch) as given_up,
            held_arm(HOST, "fr3", name=name),
        ):
            assert len(motion(given_up)) == 100
    finally:
        logger.removeHandler(caplog.handler)
    assert "Concurrency lease renewal failed" in caplog.text
    assert slots(name) == (1, 0)


def test_such_a_lease_ends_a_holder_that_prefect_is_to_end(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the test above: the default of a strict limit."""
    from prefect._internal.concurrency.cancellation import CancelledError
    from prefect.concurrency.sync import concurrency

    create(name, 1)
    with (
        broken_renewals(monkeypatch) as given_up,
        pytest.raises(CancelledError),
        concurrency(f"robot-{name}", strict=True),
    ):
        motion(given_up)


def test_a_limit_that_cannot_be_freed_is_logged(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from prefect.concurrency import _sync

    def fail(lease: Any) -> None:
        raise ConnectionError("the server is gone")

    monkeypatch.setattr(_sync, "release_concurrency_slots_with_lease", fail)
    with caplog.at_level(logging.WARNING), held_arm(HOST, "fr3", name=name):
        pass
    assert f"the limit robot-{name} could not be freed (the server is gone)" in caplog.text
    assert others_can_take(HOST)


def test_an_error_of_the_session_is_not_replaced_by_one_of_prefect(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect.concurrency import _sync

    def fail(lease: Any) -> None:
        raise ConnectionError("the server is gone")

    monkeypatch.setattr(_sync, "release_concurrency_slots_with_lease", fail)
    with pytest.raises(SafetyError, match="arm: stopped"), held_arm(HOST, "fr3", name=name):
        raise SafetyError("arm: stopped")


@pytest.mark.parametrize(("limit", "active"), [(2, True), (0, True), (1, False)])
def test_a_limit_that_does_not_mean_one_holder_is_refused(
    limit: int, active: bool, name: str
) -> None:
    create(name, limit, active)
    with pytest.raises(HandoffError, match="expected an active one of 1"):
        held_arm(HOST, "fr3", name=name).__enter__()


def test_a_server_that_does_not_answer_is_one_clear_error() -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    nowhere = "http://127.0.0.1:9/api"
    with (
        temporary_settings({PREFECT_API_URL: nowhere}),
        pytest.raises(HandoffError, match=r"the Prefect server at http://127.*Is it running"),
    ):
        held_arm(HOST, "fr3").__enter__()
    assert others_can_take(HOST)


def test_a_server_without_prefect_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(robot_limit, "find_spec", lambda module: None)
    monkeypatch.setenv("PREFECT_API_URL", "http://192.0.2.1:4200/api")
    with pytest.raises(HandoffError, match="Prefect is not installed, so the limit robot-192"):
        held_arm(HOST, "fr3").__enter__()


def test_without_a_server_the_slot_of_the_computer_is_all(no_server: None) -> None:
    with held_arm(HOST, "fr3"):
        assert not others_can_take(HOST)
    assert others_can_take(HOST)


def test_an_arm_at_a_loopback_address_asks_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(robot_limit, "prefect_server", lambda: pytest.fail("asked"))
    with held_arm("127.0.79.31", "fr3"):
        assert not others_can_take("127.0.79.31")


def test_notes_that_repeat_are_said_once() -> None:
    said: list[str] = []
    progress = spoken(said.append)
    for note in ("a", "a", "b", "b", "a"):
        progress(0, 1, note)
    assert said == ["a", "b", "a"]


def test_a_session_holds_its_arm_between_episodes(no_server: None) -> None:
    with held_for_session(DeploySession(host=HOST), no_note):
        with robot_slot(HOST, "fr3"):
            pass
        assert not others_can_take(HOST)


def test_a_session_at_an_arm_with_a_fault_is_refused_before_it_begins(no_server: None) -> None:
    keep_fault(HOST, "fr3", "joint_reflex in mode Reflex")
    with pytest.raises(SafetyError, match=r"stopped \(joint_reflex in mode Reflex\) at"):
        held_for_session(DeploySession(host=HOST), no_note).__enter__()
    assert others_can_take(HOST)


def test_a_session_that_keeps_no_faults_ignores_those_of_others(no_server: None) -> None:
    keep_fault(HOST, "fr3", "joint_reflex in mode Reflex")
    forgetful = DeploySession(host=HOST, arm=FrankaConfig(latch="connection"))
    with held_for_session(forgetful, no_note):
        pass


def test_faults_of_twins_end_with_the_connection_and_those_of_arms_are_kept() -> None:
    simulated: Any = SimulatedSetup(DeploySession(), _Twin(), Driver())
    assert simulated.arm().config.latch == "connection"
    assert [table.arm.latch for table in (DeployConfig(), DeployTaskConfig())] == [
        "connection",
        "connection",
    ]
    assert DeploySession().arm.latch == "kept"


class _Twin:
    """A twin that nobody asks."""

    def now(self) -> float:
        return 0.0

    def wait_for_motion(self) -> None:
        pass


def test_a_second_session_is_refused_before_its_console_opens(
    tmp_path: Path, no_server: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_policy(tmp_path / "policy.onnx")
    monkeypatch.setattr(
        "real.console.process.open_console", lambda *arguments: pytest.fail("opened")
    )
    refused: list[HandoffError] = []

    def second() -> None:
        try:
            session = replace(DeploySession(), host=HOST, tracker=TrackerConfig(uri="ws://x:1"))
            deploying.deploy(session, tmp_path, tmp_path, ConsoleConfig(port=0))
        except HandoffError as error:
            refused.append(error)

    with robot_slot(HOST, "fr3"):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
    assert str(refused[0]).startswith(f"fr3 at {HOST}: in use by process ")
