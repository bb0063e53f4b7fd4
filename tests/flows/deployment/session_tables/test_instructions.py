"""What the policy of a session is told: at its begin, and by a person at the page."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from flows.deployment import verified_policy
from flows.deployment.config import DeploySession, DeployTaskSession
from flows.deployment.session import session_options
from flows.deployment.session_tables import instructions
from flows.deployment.session_tables.instructions import tell, with_instruction
from flows.deployment.session_tables.open_table import BOARD_TASK
from real.console.control.commands import Instruction
from real.deploy.onnx_policy import OnnxPolicy
from robots.contract import Contract
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from tests.flows.console_session import Session, ended_by, labelled, stepped
from tests.flows.deployment.session_tables.test_gripper_session import FIELDS, deployed, on
from tests.flows.deployment.test_task_table import contract_for
from tests.real.onnx_models import save_language_policy


def speaking(folder: Path, said: str | None = None) -> OnnxPolicy:
    """A policy of `reach` whose speed is the sum of the letters that it is told, 1 for an a and 10
    for the end of the line."""
    stated = replace(contract_for("reach", FIELDS[:2]), instruction=True)
    save_language_policy(folder / "policy.onnx", stated, said=said, scale=0.01)
    return OnnxPolicy(folder / "policy.onnx")


def at_begin(policy: OnnxPolicy, **options: Any) -> str | None:
    session = with_instruction(DeployTaskSession(**options), policy.contract, policy.tokenizer)
    assert isinstance(session, DeployTaskSession)
    return session.instruction


def test_a_session_begins_with_the_given_instruction_or_the_policys_own(tmp_path: Path) -> None:
    assert at_begin(speaking(tmp_path), instruction="ab") == "ab"
    assert at_begin(speaking(tmp_path, said="c")) == "c"
    assert at_begin(speaking(tmp_path, said="c"), host="172.16.0.2", instruction="ab") == "ab"


def test_nothing_to_tell_is_refused_before_anything_moves(tmp_path: Path) -> None:
    policy = speaking(tmp_path)
    for options in ({}, {"host": "172.16.0.2"}):
        with pytest.raises(HandoffError, match="has no default one"):
            at_begin(policy, **options)
    with pytest.raises(HandoffError, match="token"):
        at_begin(policy, instruction="abcabcabc")


def test_a_task_that_says_what_to_do_tells_it_in_every_episode(tmp_path: Path) -> None:
    policy = speaking(tmp_path)
    named = replace(policy.contract, task="reach_by_name")
    session = with_instruction(DeployTaskSession(), named, policy.tokenizer)
    assert isinstance(session, DeployTaskSession)
    assert session.instruction is None
    with pytest.raises(HandoffError, match="Add --instruction"):
        with_instruction(DeployTaskSession(host="172.16.0.2"), named, policy.tokenizer)


def test_other_policies_are_told_nothing() -> None:
    for session in (DeploySession(), DeployTaskSession()):
        told = with_instruction(session, cast(Contract, SimpleNamespace(instruction=False)), None)
        assert told is session


class Person:
    """A person at the console who says one thing after another; and the table that hears it."""

    def __init__(self, *said: str, resumes: bool = True) -> None:
        self._said = [Instruction(n, text, "ada") for n, text in enumerate(said, 1)]
        self.operator = SimpleNamespace(
            instruction=lambda: self._said.pop(0) if self._said else None
        )
        self.supervision = SimpleNamespace(resumes=resumes)
        self.episode: dict[str, str] = {}
        self.held: list[str] = []
        self.heard: list[str] = []

    def hold(self, why: str) -> None:
        self.held.append(why)

    def instruct(self, sentence: str) -> None:
        self.heard.append(sentence)


def telling(policy: OnnxPolicy, person: Any, said: list[str]) -> bool:
    return tell(policy.tokenizer, person, person, said.append)


@pytest.fixture
def resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instructions, "wait_for_resume", lambda supervision: supervision.resumes)


@pytest.mark.usefixtures("resumed")
def test_what_the_policy_cannot_read_is_asked_for_again(tmp_path: Path) -> None:
    policy, said = speaking(tmp_path, said="c"), list[str]()
    person = Person("abcabcabc", "ab")
    assert telling(policy, person, said)
    assert (person.heard, person.episode) == (["ab"], {"instruction": "ab"})
    assert len(person.held) == 1
    assert "cannot be told “abcabcabc”" in person.held[0]
    assert said[0].startswith("instruction  not taken, “abcabcabc”")
    assert said[1] == "instruction  by ada: ab"


@pytest.mark.usefixtures("resumed")
def test_the_page_repeats_the_begin_of_a_long_sentence_only(tmp_path: Path) -> None:
    person = Person(" ".join(["abc"] * 60), "ab")
    assert telling(speaking(tmp_path, said="c"), person, [])
    quoted = person.held[0].partition("“")[2].partition("”")[0]
    assert quoted.startswith("abc abc")
    assert len(quoted) <= instructions.SHOWN


def test_a_session_of_push_t_takes_no_instruction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verified_policy, "task_of_release", lambda release: BOARD_TASK)
    with pytest.raises(HandoffError, match="policies of push_t take none"):
        session_options(
            tmp_path,
            [],
            arm=None,
            trackers=[],
            cameras=[],
            instruction="push it",
            mode="live",
            recording=None,
            warn=lambda text: None,
        )


@pytest.mark.usefixtures("resumed")
def test_a_person_may_go_on_without_or_end_the_session(tmp_path: Path) -> None:
    policy, said = speaking(tmp_path, said="c"), list[str]()
    for resumes in (True, False):
        person = Person("abcabcabc", resumes=resumes)
        assert telling(policy, person, said) is resumes
        assert (person.heard, person.episode) == ([], {})
    assert telling(policy, Person(), said)


def test_an_instruction_at_the_page_holds_from_the_next_episode_on(tmp_path: Path) -> None:
    speaking(tmp_path, said="a")
    running = Session(deployed, tmp_path, tmp_path, on("127.0.83.11"))
    page = running.page()
    with contextlib.closing(page.socket):
        assert page.state()["instruction"] == {"offered": True, "next": ""}
        page.go()
        stepped(page, 4)
        labelled(page, "KeyQ", 1)
        page.say(kind="press", action="hold still")
        page.say(kind="instruct", text="cc")
        page.go()
        stepped(page, 4)
        labelled(page, "KeyQ", 2)
        ended_by(page)
        running.ended()
    store = EpisodeStore.open(tmp_path / "store.zarr", "r")
    assert [store.metadata(n)["instruction"] for n in (0, 1)] == ["a", "cc"]
    for number, told, speed in ((0, b"a", 0.11), (1, b"cc", 0.16)):
        steps = store.read(number, "policy")
        assert {row.tobytes().rstrip(b"\0") for row in steps["instruction"]} == {told}
        np.testing.assert_allclose(steps["action_proposed"][:, 0], speed, atol=1e-6)
