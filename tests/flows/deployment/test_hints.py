"""Hints in a session of `handoff deploy` at a simulated arm: what is shown, recorded and reported."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flows.deployment import session as deploying
from flows.session.hints import FILE, LIMITS
from real.console.server import ConsoleConfig
from real.hints.config import ActionSpreadSource, DeploymentHints, HintSource
from robots.control.training_range import data_range, input_range
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from sim.tasks.push_t.geometry import initial_state
from tests.flows.console_session import Session, ended_by, labelled, stepped
from tests.flows.deployment.test_session import _deploy, on
from tests.real.fakes import contract
from tests.real.onnx_models import save_policy

HINTS = DeploymentHints(
    spread=ActionSpreadSource(samples=4), novelty=HintSource(), recent=1, least=1
)
START = initial_state(0)[0]
RANGE = {
    "action_range": data_range(np.array([[0.0, 0.0], [0.5, 0.5]])),
    "training_range": {"agent": input_range("m", np.array([START - 0.02, START + 0.02]))},
}
"""In all training data the pusher was near its first start of the session, not near the second."""


def bundle(folder: Path, scale: float) -> Path:
    """A policy that stays where the pusher is, but for `scale` times its noise."""
    save_policy(folder / "policy.onnx", scale=scale, **RANGE)
    return folder


def test_a_session_records_its_hints_and_shows_one_once_it_knows_a_limit(tmp_path: Path) -> None:
    out = tmp_path / "out"
    policy = bundle(tmp_path, 0.002)
    session = Session(_deploy, out, policy, replace(on("127.0.79.51"), hints=HINTS))
    page = session.page()
    with contextlib.closing(page.socket):
        page.go()
        assert stepped(page, 8)["hint"] == ""
        labelled(page, "KeyS", 1)
        page.go()
        stepped(page, 3)
        stepped(page, 5, "ArrowUp")
        state = stepped(page, 4)
        assert state["mode"] == "policy"
        assert "what was not in its training data" in state["hint"]
        labelled(page, "KeyQ", 2)
        ended_by(page)
        session.ended()
    store = EpisodeStore.open(out / "store.zarr", "r")
    first, second = store.read(0, "policy"), store.read(1, "policy")
    assert store.metadata(0)[LIMITS] == {}
    limits = store.metadata(1)[LIMITS]
    assert limits["novelty"] == pytest.approx(first["novelty"].max())
    assert limits["action_spread"] == pytest.approx(first["action_spread"].max())
    assert first["action_spread"].max() > 0.0
    assert not first["hint"].any()
    person = second["intervention"].ravel() == 1
    assert not second["hint"].ravel()[person].any()
    assert (second["hint"].ravel()[~person][-2:] & 4).all()
    report = json.loads((out / FILE).read_text())
    assert report["episodes"] == 1
    announced = report["failures_announced"]
    assert (announced["k"], announced["n"]) == (1, 1)


def deployed(tmp_path: Path, scale: float, **options: object) -> None:
    session = replace(on("127.0.79.52"), hints=HINTS, **options)
    deploying.deploy(
        session,
        bundle(tmp_path, scale),
        tmp_path / "out",
        ConsoleConfig(port=0),
        say=lambda _: None,
    )


def test_the_spread_of_a_deterministic_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HandoffError, match="the policy of push_t is deterministic"):
        deployed(tmp_path, 0.0)


def test_recorded_actions_have_no_hints(tmp_path: Path) -> None:
    with pytest.raises(HandoffError, match=r"`recording` and `hints` exclude each other"):
        deploying.check_policy(
            replace(on("127.0.79.53"), hints=HINTS, recording="runs/somewhere"), contract()
        )
