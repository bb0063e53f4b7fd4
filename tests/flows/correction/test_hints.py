"""Hints in a correction session: refused sources, what a real session records, and its figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.artifacts import Episodes
from flows.correction.config import CorrectConfig
from flows.correction.hints import check_hints, session_hints
from flows.session.hints import LIMITS, recorded_usefulness, restore_limits, usefulness_line
from flows.stages.data import demonstrate
from flows.stages.data.config import DemonstrateConfig
from flows.stages.learn import correct
from policies.checkpoint import read_card
from policies.policy_config import LearnedActorConfig
from policies.rl.hil.config import HilRlpdConfig
from real.hil.rewards import EnvReward
from real.hints.config import CorrectionHints, HintSource, ValueDropSource
from robots.episodes.corrections import (
    STREAM,
    EpisodeAssembler,
    StepOutcome,
    corrections_schema,
    open_corrections,
)
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import Intervention, no_progress
from robots.spec import ActionSpec, FieldSpec
from tests.flows.correction.test_correct import ENV, STEPS, config

HINTS = CorrectionHints(
    value=ValueDropSource(), disagreement=HintSource(), novelty=HintSource(), recent=2, least=1
)


def with_hints(kind: str = "hil_serl", hints: CorrectionHints = HINTS) -> CorrectConfig:
    return replace(config(kind), hints=hints)


@pytest.mark.parametrize(
    ("configuration", "sources", "message"),
    [
        (with_hints("hg_dagger"), {}, "hg_dagger has not. Use hints.novelty or hints.success"),
        (
            with_hints(hints=CorrectionHints(success=HintSource())),
            {"demos": 1},
            r"hints.success needs the input 'classifier', the stage has \['demos'\]",
        ),
    ],
)
def test_a_source_that_the_session_has_not_is_refused(
    configuration: CorrectConfig, sources: dict[str, Any], message: str
) -> None:
    with pytest.raises(HandoffError, match=message):
        check_hints(configuration, sources)


def test_one_critic_cannot_disagree() -> None:
    one = with_hints("rlpd")
    assert isinstance(one.algorithm, HilRlpdConfig)
    sac = replace(one.algorithm.sac, critics=1, subset=None)
    with pytest.raises(HandoffError, match=r"algorithm\.sac\.critics is 1, expected 2 or more"):
        check_hints(replace(one, algorithm=replace(one.algorithm, sac=sac)), {})


def test_no_source_has_no_hints() -> None:
    assert session_hints(CorrectionHints(), 10.0, EnvReward(), lambda text: None) is None
    check_hints(with_hints("hg_dagger", CorrectionHints(novelty=HintSource())), {})


def test_a_session_measures_every_step_and_saves_a_policy_without_critics(tmp_path: Path) -> None:
    demonstrate.run(DemonstrateConfig(env=ENV, episodes=3), tmp_path / "demos", no_progress)
    out = tmp_path / "out"
    out.mkdir()
    demos = Episodes(tmp_path / "demos")
    metrics = correct.run(with_hints(), out, no_progress, demos=demos).metrics
    assert metrics["steps"] >= STEPS
    store = EpisodeStore.open(out / "store.zarr")
    fields = store.schema.stream(STREAM).fields
    measured = ("hint", "value", "value_spread", "novelty")
    assert {fields[name].role for name in measured} == {"other"}, "no policy observes them"
    spread = store.column(STREAM, "value_spread").ravel()
    assert (spread > 0.0).all(), "the critics came with every version of the policy"
    assert np.ptp(store.column(STREAM, "value")) > 0.0
    person = store.column(STREAM, "intervention").ravel() == 1
    assert person.any()
    assert not store.column(STREAM, "hint").ravel()[person].any(), "none while the person acts"
    assert all(LIMITS in store.metadata(episode) for episode in range(store.num_episodes))
    assert metrics.get("hints", {}) == recorded_usefulness(store)
    card = read_card(out)
    assert isinstance(card.model, LearnedActorConfig)
    assert card.model.card.critics is None
    # A session that is resumed has the limits of the last episode that began.
    hints = session_hints(HINTS, ENV.rate_hz or 20.0, EnvReward(), lambda text: None)
    assert hints is not None
    restore_limits(hints.monitor, store, list(hints.fields))
    last = store.metadata(store.num_episodes - 1)
    if not last["success"]:
        assert hints.monitor.limits == last[LIMITS]


ACTIONS = ActionSpec(low=(-1.0,), high=(1.0,), names=("x",), interface="cartesian_delta")
HINT = FieldSpec(shape=(), dtype="uint8", role="other")


def recorded(path: Path, hints: str, person: str, success: bool, **about: Any) -> None:
    """Adds an episode whose steps with a hint, and of the person, are the stars of two lines."""
    schema = corrections_schema(
        "reach", 1.0, {"pose": FieldSpec(shape=(1,))}, ACTIONS, further={"hint": HINT}
    )
    with open_corrections(path, schema) as store:
        assembler = EpisodeAssembler(store, 1, {})
        one = np.zeros((1, 1))
        for step, (hint, acts) in enumerate(zip(hints, person, strict=True)):
            held = np.array([acts == "*"])
            last = step == len(hints) - 1
            event = Intervention(one, one, held, held - 1, 6 * held, "ada", "keyboard")
            end = np.array([(1 if success else -1) if last else 0])
            outcome = StepOutcome(
                np.zeros(1), end, {"pose": one}, np.array([last]), np.array([step])
            )
            assembler.add(
                {"pose": one},
                event,
                outcome,
                moved=np.array([True]),
                about=[{LIMITS: {"novelty": 1.0}, **about}],
                further={"hint": np.array([4 * (hint == "*")])},
            )


def test_dropped_episodes_and_those_before_the_first_limit_count_for_nothing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "store.zarr"
    recorded(path, "**....", "......", True, **{LIMITS: {}})
    recorded(path, "**....", "......", False, discard_reason="discard")
    store = EpisodeStore.open(path)
    assert recorded_usefulness(store) == {}
    recorded(path, "..*...", "....**", True)
    recorded(path, "..*...", "......", True)
    report = recorded_usefulness(EpisodeStore.open(path))
    assert report["episodes"] == 2
    assert (report["takeovers_announced"]["k"], report["false_alarms"]["k"]) == (1, 1)
    line = usefulness_line(report)
    assert line.startswith("2 in 2 episodes, right 1 of 2 (at random ")
    assert "takeovers announced 1 of 1" in line
    assert "failures" not in line, "there was none"
    assert report["causes"] == {"novelty": {k: v for k, v in report.items() if k != "causes"}}
    assert recorded_usefulness(EpisodeStore.open(path), first=3)["episodes"] == 1


def test_a_store_without_hints_has_no_figures(tmp_path: Path) -> None:
    fields = {"pose": FieldSpec(shape=(1,))}
    schema = corrections_schema("reach", 1.0, fields, ACTIONS)
    EpisodeStore.create(tmp_path / "store.zarr", schema).close()
    assert recorded_usefulness(EpisodeStore.open(tmp_path / "store.zarr")) == {}
