"""`handoff deploy --against`: its options, and what the terminal is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flows.commands.sessions import deploy
from flows.deployment.blinded import command as blinded
from flows.deployment.blinded.config import BlindedConfig
from flows.deployment.blinded.result import PAGE, RESULT, reveal
from flows.deployment.blinded.sealed_order import open_order
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.spec import FieldSpec
from tests.flows.deployment.blinded.played import sealed
from tests.flows.deployment.releases import MadeRuns


def played(folder: Path, episodes: int, config: BlindedConfig) -> None:
    """A comparison in which policy a alone succeeds, up to some episode."""
    order = open_order(folder, sealed("x").policies, config)
    schema = EpisodeSchema(
        name="reach",
        streams={"policy": StreamSpec(rate_hz=10.0, fields={"x": FieldSpec(shape=())})},
    )
    with EpisodeStore.create(folder / "store.zarr", schema) as store:
        for number in range(episodes):
            pair, place = divmod(number, 2)
            won = order.order(pair)[place] == 0
            about = {"success": won, "takeovers": 0, "blinded": {"pair": pair, "place": place}}
            store.append({"policy": {"x": [0.0]}}, about)  # type: ignore[dict-item]


def test_the_options_reach_the_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = MadeRuns(tmp_path / "runs")
    other = MadeRuns(tmp_path / "others")
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(blinded, "compare", lambda *given, **named: calls.append(given))
    gates = (runs.gate.path, other.gate.path)
    deploy(
        gates[0],
        "supervision.speed=0.1",
        against=(gates[1],),
        pairs=12,
        alpha=0.1,
        seed=3,
        preference=True,
        mode="dry-run",
        out=tmp_path / "out",
    )
    ((session, names, _, config, out, _),) = calls
    assert (session.supervision.speed, session.speed) == (0.1, 0.1)
    assert names == [str(gate) for gate in gates]
    assert config == BlindedConfig(pairs=12, alpha=0.1, seed=3, preference=True)
    assert out == tmp_path / "out"


@pytest.mark.parametrize(
    "option", [{"pairs": 3}, {"alpha": 0.1}, {"seed": 0}, {"preference": True}, {"reveal": True}]
)
def test_options_of_a_comparison_need_one(option: dict[str, Any]) -> None:
    with pytest.raises(HandoffError, match="add --against"):
        deploy(Path("runs/demo/gate"), **option)


def test_a_session_without_the_comparison_adds_nothing_to_its_folder(tmp_path: Path) -> None:
    played(tmp_path, 1, BlindedConfig())
    runs = MadeRuns(tmp_path / "runs")
    with pytest.raises(HandoffError, match="of a blinded comparison, which no other session"):
        deploy(runs.gate.path, out=tmp_path)
    with EpisodeStore.open(tmp_path / "store.zarr", "r") as store:
        assert store.num_episodes == 1


def test_nothing_is_revealed_before_the_end_unless_the_person_ends_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    played(tmp_path, 5, BlindedConfig())
    assert reveal(tmp_path) is None
    blinded.report(None, tmp_path, print)
    assert "nothing is revealed" in capsys.readouterr().out
    assert not (tmp_path / RESULT).exists()
    deploy(Path("a"), against=(Path("b"),), out=tmp_path, reveal=True)
    result = json.loads((tmp_path / RESULT).read_text())
    assert result["pairs"] == {"planned": 30, "played": 2, "discarded": 0, "ended": "person"}
    assert result["comparisons"][0]["better"] is None
    assert [row["policy"] for row in result["episodes"] if row["success"]] == ["a"] * sum(
        row["success"] for row in result["episodes"]
    )
    assert "not told apart in 2 pairs" in (tmp_path / PAGE).read_text()
    assert "not told apart" in capsys.readouterr().out


def test_a_comparison_that_the_test_decided_is_revealed(tmp_path: Path) -> None:
    played(tmp_path, 60, BlindedConfig())
    result = reveal(tmp_path)
    assert result is not None
    assert result["comparisons"][0]["better"] == "a"
    assert result["pairs"]["ended"] == "test"


def test_a_comparison_without_a_complete_pair_is_not_revealed(tmp_path: Path) -> None:
    with pytest.raises(HandoffError, match="no comparison was begun"):
        reveal(tmp_path, early=True)
    open_order(tmp_path, sealed("x").policies, BlindedConfig())
    with pytest.raises(HandoffError, match="no episodes yet"):
        reveal(tmp_path, early=True)
    played(tmp_path, 1, BlindedConfig())
    with pytest.raises(HandoffError, match="no pair of"):
        reveal(tmp_path, early=True)
