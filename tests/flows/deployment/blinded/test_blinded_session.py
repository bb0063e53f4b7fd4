"""A person at the console judges two policies at a simulated arm without knowing which one acts;
the session is killed, goes on, and ends when the test has decided."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from flows.deployment import session as deploying
from flows.deployment.blinded.blinded_run import TELLING
from flows.deployment.blinded.command import check_comparison, compare
from flows.deployment.blinded.config import BlindedConfig
from flows.deployment.blinded.result import PAGE, RESULT, reveal
from flows.deployment.blinded.sealed_order import FILE, read_order
from flows.deployment.config import DeployTaskSession, ResetConfig
from real.cameras.config import CameraConfig
from robots.contract import Contract
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from sim.twin.twin import TwinConfig
from tests.flows.console_session import PATIENT, STARTS, Session, labelled, sent_to, stepped
from tests.flows.deployment.test_task_table import contract_for, towards
from tests.real.onnx_models import save_linear_policy

FIELDS = ("grasp_pose", "target_offset", "goal")
DIGESTS = ("3" * 64, "7" * 64)
"""Digests of the two policies, by the contract."""
LONGEST = 60
"""Steps after which the person calls an attempt a failure."""


def bundles(folder: Path) -> list[Path]:
    """Two policies of `reach`: one moves to the goal, one stays where it is."""
    made = []
    for name, digest in zip(("capable", "idle"), DIGESTS, strict=True):
        stated = replace(contract_for("reach", FIELDS), policy=digest)
        weights = towards(stated, "goal")
        place = folder / name
        place.mkdir(parents=True)
        save_linear_policy(
            place / "policy.onnx", stated, weights if name == "capable" else 0.0 * weights
        )
        made.append(place)
    return made


def judged(
    out: Path,
    policies: Sequence[Path],
    session: DeployTaskSession,
    config: BlindedConfig,
    lines: Path,
    here: Any,
) -> None:
    told = sent_to(here)

    def say(text: str) -> None:
        with lines.open("a") as stream:
            stream.write(f"{text}\n")
        told(text)

    names = [policy.name for policy in policies]
    compare(session, names, policies, config, out, PATIENT, say=say)


class Judge:
    """A person who sees the page alone: starts, watches, and labels what takes too long."""

    def __init__(self, running: Session) -> None:
        self.page = running.page()
        self.seen: list[str] = []
        """All that the page was told."""
        self.episode = -1
        """Number of the newest episode of this session."""

    def look(self, *codes: str) -> dict[str, Any]:
        self.page.keys(*codes)
        state = self.page.newest()
        self.seen.append(json.dumps(state))
        return state

    def wait(self, true: Any, *codes: str) -> dict[str, Any]:
        limit = time.monotonic() + STARTS
        while not true(state := self.look(*codes)):
            assert time.monotonic() < limit, f"it never came true: {state}"
        return state

    def watch(self, key: str = "") -> None:
        """Sees an episode to its end: solved, or labelled a failure after `LONGEST` steps.

        Args:
            key: label that is given after a few steps in place of all that.
        """
        self.start()
        longest = 10 if key else LONGEST
        state = self.wait(lambda s: not s["labels"] or s["state"].get("step", 0) >= longest)
        if state["labels"]:
            for codes in ((key or "KeyQ",), (), (key or "KeyQ",), ()):
                self.look(*codes)
            self.wait(lambda s: not s["labels"])

    def start(self, steps: int = 1) -> None:
        """Waits until the next episode has made some steps; presses Start where the arm waits."""
        limit = time.monotonic() + STARTS
        for press in itertools.cycle((True, False)):
            state = self.look(*(("Enter",) if press else ()))
            newest = state["state"]
            if newest.get("episode", -1) > self.episode and newest["step"] >= steps:
                self.episode = newest["episode"]
                return
            assert time.monotonic() < limit, f"no episode runs: {state}"
            time.sleep(0.02)

    def answer(self, choice: int) -> None:
        """Says which episode of a pair was better."""
        asked = self.wait(lambda s: s["reset"].get("question"))["reset"]["question"]
        assert asked["choices"] == ["The first", "The second", "No difference"]
        self.page.say(kind="answer", choice=choice)
        self.wait(lambda s: (s["reset"].get("question") or {}).get("answer") == choice)


def options(host: str) -> DeployTaskSession:
    loop = replace(DeployTaskSession().loop, max_steps=400)
    # The driver of a session that was killed holds the arm until it is at rest.
    return DeployTaskSession(twin=TwinConfig(host=host), loop=loop, wait_seconds=30.0)


def telling(folder: Path) -> list[str]:
    """Files of a running comparison, but for the sealed order, that name a policy."""
    words = [*DIGESTS, "capable", "idle"]
    return [
        str(file)
        for file in folder.rglob("*")
        if file.is_file()
        and file.name != FILE
        and any(word.encode() in file.read_bytes() for word in words)
    ]


def test_a_person_judges_policies_without_knowing_which_one_acts(tmp_path: Path) -> None:
    policies = bundles(tmp_path / "policies")
    out, lines = tmp_path / "out", tmp_path / "lines.txt"
    # A level at which two pairs that differ in the same direction decide.
    config = BlindedConfig(pairs=3, alpha=0.9, seed=4, preference=True)
    arguments = (out, policies, options("127.0.92.1"), config, lines)

    # The first session is killed in the second episode.
    running = Session(judged, *arguments)
    person = Judge(running)
    person.watch()
    person.start(10)
    assert running.process.pid is not None
    os.kill(running.process.pid, signal.SIGKILL)
    running.process.join(20.0)
    with contextlib.suppress(OSError):
        person.page.socket.close()
    assert not (out / RESULT).exists()
    assert reveal(out) is None
    assert not (out / PAGE).exists(), "nothing is revealed before the end"

    # The second one goes on with the episode that was cut off.
    running = Session(judged, *arguments)
    again = Judge(running)
    with contextlib.closing(again.page.socket):
        again.watch()
        told = telling(out)
        again.answer(0)
        again.watch()
        again.watch()
        again.answer(2)
        again.look("Enter")
        again.look()
        running.ended()

    order = read_order(out)
    acting = [policy for pair in (0, 1) for policy in order.order(pair)]
    store = EpisodeStore.open(out / "store.zarr", "r")
    abouts = [store.metadata(number) for number in range(store.num_episodes)]
    assert [about["discard_reason"] for about in abouts] == [None, "interrupted", None, None, None]
    places = [(about["blinded"]["pair"], about["blinded"]["place"]) for about in abouts]
    assert places == [(0, 0), (0, 1), (0, 1), (1, 0), (1, 1)]
    assert [about["seed"] for about in abouts] == [0, 0, 0, 1, 1]
    counted = [about for about in abouts if about["discard_reason"] is None]
    assert [about["success"] for about in counted] == [policy == 0 for policy in acting]

    # The two episodes of a pair begin with the same scene.
    scenes = [store.read(number, "policy", ["goal", "grasp_pose"]) for number in (0, 2, 3, 4)]
    for one, other in (scenes[:2], scenes[2:]):
        np.testing.assert_array_equal(one["goal"][0], other["goal"][0])
        np.testing.assert_allclose(one["grasp_pose"][0], other["grasp_pose"][0], atol=2e-3)
    assert np.abs(scenes[0]["goal"][0] - scenes[2]["goal"][0]).max() > 0.01

    # Nothing told which policy acted: entries, files, page, terminal.
    assert told == []
    keys = {frozenset(about) for about in counted}
    assert len(keys) == 1
    assert not set(TELLING) & keys.pop()
    seen = " ".join([*person.seen, *again.seen, lines.read_text()])
    assert not any(word in seen for word in (*DIGESTS, "capable", "idle"))

    result = json.loads((out / RESULT).read_text())
    assert result["comparisons"][0]["better"] == "capable"
    assert result["pairs"] == {"planned": 3, "played": 2, "discarded": 0, "ended": "test"}
    assert [each["success"]["k"] for each in result["policies"]] == [2, 0]
    assert sum(each["repeated"] for each in result["policies"]) == 1
    assert result["preferences"]["no_difference"] == 1
    assert [each["preferred"] for each in result["policies"]] == [
        int(acting[0] == 0),
        int(acting[0] == 1),
    ]
    assert result["seal"]["commitment"] in lines.read_text()
    assert "capable succeeds more often than idle" in (out / PAGE).read_text()


def filmed(folder: Path, host: str) -> DeployTaskSession:
    """A session whose table a person lays, beside a camera with ten seconds of pictures."""
    with av.open(str(folder / "film.avi"), "w") as container:
        stream = container.add_stream("mjpeg", rate=30)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuvj420p"
        for number in range(300):
            grey = np.full((48, 64, 3), number * 250 // 300, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(grey, format="rgb24")))
        container.mux(stream.encode(None))
    camera = CameraConfig(source=str(folder / "film.avi"), height=48, again=0.05)
    laid = ResetConfig(by_person=True)
    return replace(options(host), cameras={"front": camera}, reset=laid, max_age=5.0)


def test_a_label_decides_a_takeover_is_a_failure_and_a_discarded_pair_is_void(
    tmp_path: Path,
) -> None:
    policies = bundles(tmp_path / "policies")
    out, lines = tmp_path / "out", tmp_path / "lines.txt"
    config = BlindedConfig(pairs=1)
    running = Session(judged, out, policies, filmed(tmp_path, "127.0.92.2"), config, lines)
    person = Judge(running)
    with contextlib.closing(person.page.socket):
        person.watch("KeyS")
        person.watch("KeyD")
        person.watch("KeyR")
        person.watch("KeyS")
        person.start()
        stepped(person.page, 3, "ArrowUp")
        labelled(person.page, "KeyS", 5)
        running.ended()
    # Every pair has one picture of its start, by which the person lays the table again.
    assert len(list((out / "starts").iterdir())) == 2
    shown = [words for words in person.seen if "as the pictures of the start show" in words]
    assert {json.loads(words)["facts"]["episode"] for words in shown} >= {"second"}
    result = json.loads((out / RESULT).read_text())
    assert result["pairs"] == {"planned": 1, "played": 1, "discarded": 1, "ended": "pairs"}
    rows = result["episodes"]
    assert [row["counting"] for row in rows] == [
        "counts",
        "void",
        "repeated",
        "counts",
        "counts",
    ]
    order = read_order(out)
    first, second = order.order(1)
    names = [policy.name for policy in order.policies]
    assert [row["policy"] for row in rows[3:]] == [names[first], names[second]]
    assert [row["success"] for row in rows[3:]] == [True, False]
    assert result["policies"][second]["taken_over"] == 1
    assert result["outcome"].endswith("were not told apart in 1 pairs.")
    assert EpisodeStore.open(out / "store.zarr", "r").metadata(4)["label"] == "success"


def contracts() -> list[Contract]:
    stated = contract_for("reach", FIELDS)
    return [replace(stated, policy=digest) for digest in DIGESTS]


@pytest.mark.parametrize(
    ("session", "names", "changes", "named"),
    [
        ({}, ["a", "b"], {"rate_hz": 12.5}, "b and a differ in rate_hz"),
        ({}, ["a", "b"], {"sensors": {}, "instruction": True}, "differ in instruction"),
        ({}, ["a", "a"], {}, "names a policy twice"),
        ({}, ["a"], {}, "1 policies, expected 2 to 8"),
        ({"shadow": True}, ["a", "b"], {}, "Leave out recording, shadow and hints"),
    ],
)
def test_what_would_tell_the_policies_apart_is_refused(
    session: dict[str, Any], names: list[str], changes: dict[str, Any], named: str
) -> None:
    first, second = contracts()
    given = [first, replace(second, **changes)][: len(names)]
    with pytest.raises(HandoffError, match=named):
        check_comparison(DeployTaskSession(**session), names, given)


def test_policies_that_may_differ_are_compared() -> None:
    first, second = contracts()
    shorter = replace(second, horizon=4, n_action_steps=2, sampler="one-step")
    check_comparison(DeployTaskSession(), ["a", "b"], [first, shorter])


def test_a_folder_of_another_session_is_refused(tmp_path: Path) -> None:
    policies = bundles(tmp_path / "policies")
    (tmp_path / "out" / "store.zarr").mkdir(parents=True)
    with pytest.raises(HandoffError, match="episodes of another session"):
        compare(
            options("127.0.92.3"), ["a", "b"], policies, BlindedConfig(), tmp_path / "out", PATIENT
        )


def test_a_comparison_that_is_over_is_not_played_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policies = bundles(tmp_path / "policies")
    monkeypatch.setattr(deploying, "deploy", lambda *args, **kwargs: pytest.fail("it was played"))
    (tmp_path / RESULT).write_text(json.dumps({"outcome": "a is better"}))
    result = compare(
        options("127.0.92.4"), ["a", "b"], policies, BlindedConfig(), tmp_path, PATIENT
    )
    assert result == {"outcome": "a is better"}
