"""A session whose success classifier is trained further while it runs: its versions judge episodes,
and a killed session goes on with them."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.correction.config import CorrectConfig
from flows.correction.refresh_process import check_refresh
from flows.correction.versions import (
    VERSION,
    VersionCard,
    newer_judgement,
    newest_used,
    read_versions,
    refused_versions,
    remove_unfinished,
    version_folder,
    versions_overdue,
    write_version,
)
from flows.reports.results import _session
from flows.stages.learn.correct import _progress_note
from policies.rewards.config import RefreshConfig
from policies.rl.hil.config import HgDaggerConfig
from real.hints.config import CorrectionHints, HintSource
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError

LONG = 240.0
"""Time limit of a wait [s], reached only by a defect."""
SESSION = """
hil smoke --operator simulated --until corrected classifier.train.members=2
corrected.refresh.every=4 corrected.refresh.training.steps=30
corrected.refresh.training.warmup_steps=5 corrected.refresh.precision=0.5
corrected.refresh.lowest_threshold=0.2
"""


def write(session: Path, number: int, refused: str = "", judged: Any = ()) -> VersionCard:
    version_folder(session, number).mkdir(parents=True)
    card = VersionCard(number=number, episodes=4 * number, refused=refused, judged=judged)
    write_version(session, card)
    return card


def test_the_newest_version_that_is_used_is_found(tmp_path: Path) -> None:
    assert newest_used(tmp_path, 0) is None
    first = write(tmp_path, 1)
    write(tmp_path, 2, refused="no threshold")
    assert newest_used(tmp_path, 0) == first
    assert newest_used(tmp_path, 1) is None, "the actor has it already"
    third = write(tmp_path, 3)
    assert newest_used(tmp_path, 1) == third
    assert [card.number for card in read_versions(tmp_path)] == [1, 2, 3]


def test_refused_versions_are_counted_with_the_reason_of_the_last(tmp_path: Path) -> None:
    write(tmp_path, 1)
    assert refused_versions(tmp_path) == {}
    write(tmp_path, 2, refused="no threshold")
    write(tmp_path, 3, refused="too few successes")
    found = refused_versions(tmp_path)
    assert found == {"refused_classifiers": 2, "refused_because": "too few successes"}
    share = {"k": 1, "n": 4}
    errors = dict.fromkeys(("recent_success", "false_success_share", "missed_success_share"), share)
    line = _session({**errors, "recent_corrected": 0.5, **found})
    assert line.endswith("4 solved ones, 2 versions refused: too few successes")
    counters = {"recent_success": 0.5, "recent_interventions": 0.1, "updates": 7}
    assert "7 updates, 2 classifiers refused, here" in _progress_note(counters, "here", False, 2)


def test_a_version_without_its_card_is_unfinished(tmp_path: Path) -> None:
    write(tmp_path, 1)
    (version_folder(tmp_path, 2) / "half").mkdir(parents=True)
    assert newest_used(tmp_path, 1) is None
    remove_unfinished(tmp_path)
    assert [path.name for path in (tmp_path / "classifiers").iterdir()] == ["0001"]


def test_the_learner_gets_a_judgement_once_and_looks_once_a_second(tmp_path: Path) -> None:
    seconds: Iterator[float] = iter([0.0, 0.0, 0.5, 1.1, 1.1, 9.0])
    newer = newer_judgement(tmp_path, lambda: next(seconds))
    assert newer(-1) is None, "there is none yet"
    write(tmp_path, 1, judged=((2**24, 5, True), (2**24 + 2, 7, False)))
    assert newer(-1) is None, "half a second later"
    found = newer(-1)
    assert found is not None
    assert (found.version, found.episode.tolist()) == (1, [2**24, 2**24 + 2])
    assert (found.number.tolist(), found.success.tolist()) == ([5, 7], [True, False])


def test_an_actor_that_may_wait_does_while_two_versions_are_overdue(tmp_path: Path) -> None:
    seconds: Iterator[float] = iter(np.arange(20.0))
    overdue = versions_overdue(tmp_path, 4, lambda: next(seconds))
    assert [overdue(episodes) for episodes in (0, 4, 7, 8, 9)] == [False, False, False, True, True]
    write(tmp_path, 1)
    assert [overdue(episodes) for episodes in (9, 11, 12)] == [False, False, True]
    write(tmp_path, 2, refused="no threshold")
    assert not overdue(12), "a refused version is a finished one"


@pytest.mark.parametrize(
    ("changes", "sources", "message"),
    [
        ({}, ["demos"], r"refresh needs the input 'classifier', the stage has \['demos'\]"),
        ({"algorithm": HgDaggerConfig()}, ["classifier"], "which hg_dagger does not read"),
        (
            {"hints": CorrectionHints(success=HintSource())},
            ["classifier"],
            "hints.success compares with one threshold",
        ),
    ],
)
def test_a_refresh_that_nobody_reads_is_refused(
    changes: dict[str, Any], sources: list[str], message: str
) -> None:
    chosen = replace(CorrectConfig(refresh=RefreshConfig()), **changes)
    with pytest.raises(HandoffError, match=message):
        check_refresh(chosen, dict.fromkeys(sources))
    check_refresh(replace(chosen, refresh=None), dict.fromkeys(sources))


def start(out: Path) -> subprocess.Popen[str]:
    """Starts the session in a new process group."""
    command = [sys.executable, "-m", "flows", *SESSION.split(), "--out", str(out)]
    pipe, merged = subprocess.PIPE, subprocess.STDOUT
    return subprocess.Popen(command, start_new_session=True, stdout=pipe, stderr=merged, text=True)


def wait_for_versions(out: Path, running: subprocess.Popen[str], count: int) -> None:
    """Waits until `count` versions are finished."""
    deadline = time.monotonic() + LONG
    while time.monotonic() < deadline:
        assert running.poll() is None, running.communicate()[0]
        if (
            len(list(out.parent.glob(f"artifacts/corrected-*.partial/classifiers/*/{VERSION}")))
            >= count
        ):
            return
        time.sleep(0.05)
    raise AssertionError("the classifier got no further version")


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The artifact of a session that was killed (SIGKILL) after its first version, and resumed."""
    out = tmp_path_factory.mktemp("refreshed") / "session"
    running = start(out)
    wait_for_versions(out, running, 1)
    os.killpg(running.pid, signal.SIGKILL)
    running.communicate()
    running = start(out)
    output = running.communicate(timeout=LONG)[0]
    assert running.returncode == 0, output
    return out / "corrected"


def test_a_killed_session_goes_on_and_has_each_version_once(session: Path) -> None:
    versions = read_versions(session)
    assert len(versions) >= 2
    assert [card.number for card in versions] == list(range(1, len(versions) + 1))
    assert [card.episodes for card in versions] == [4 * card.number for card in versions]
    names = sorted(path.name for path in (session / "classifiers").iterdir())
    assert names == [f"{card.number:04d}" for card in versions], "nothing unfinished is left"


def test_every_episode_states_the_version_that_judged_it(session: Path) -> None:
    store = EpisodeStore.open(session / "store.zarr")
    digests = {card.number: card.digest for card in read_versions(session)}
    digests[0] = hashlib.sha256(
        (session.parent / "classifier" / "success.onnx").read_bytes()
    ).hexdigest()
    judged = [store.metadata(episode) for episode in range(store.num_episodes)]
    found = [one["classifier_version"] for one in judged if one["discard_reason"] is None]
    assert found[0] == 0
    assert found == sorted(found), "never an older version after a newer one"
    assert max(found) >= 1
    for one in judged:
        if one["discard_reason"] is None:
            assert one["classifier_digest"] == digests[one["classifier_version"]]
    for card in read_versions(session):
        if not card.refused:
            graph = (version_folder(session, card.number) / "success.onnx").read_bytes()
            assert hashlib.sha256(graph).hexdigest() == card.digest


def test_judged_episodes_are_those_that_a_classifier_ended(session: Path) -> None:
    store = EpisodeStore.open(session / "store.zarr")
    lengths = np.diff(store.ends("policy"), prepend=0)
    ended = {}
    for episode in range(store.num_episodes):
        one = store.metadata(episode)
        if one.get("ended_by") == "classifier" and one["discard_reason"] is None:
            ended[one["journal_episode"]] = (episode, int(lengths[episode]) - 1)
    for card in read_versions(session):
        for journal, number, _ in card.judged:
            assert ended[journal][0] < card.episodes
            assert ended[journal][1] == number


def test_the_report_counts_the_errors_of_every_version(session: Path) -> None:
    summary = json.loads((session.parent / "summary.json").read_text())
    metrics = summary["stages"]["corrected"]["metrics"]
    versions = metrics["classifiers"]
    assert versions[0]["version"] == 0
    assert sum(one["episodes"] for one in versions) == metrics["episodes"]
    for name in ("false_successes", "missed_successes"):
        assert sum(one[name] for one in versions) == metrics[name]
    assert summary["metrics"]["corrected.false_success_share"]["n"] == metrics["episodes"]
