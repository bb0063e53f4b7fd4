"""`handoff profile`: placements of a fine-tuning, and numbers of environments of PPO from
scratch."""

from __future__ import annotations

import json

import pytest

from flows.__main__ import main
from flows.commands import requirements
from flows.profiling.command import profile, profile_command
from robots.errors import HandoffError

SMALL = ("teacher.num_envs=4", "teacher.algorithm.rollout_steps=4", "teacher.algorithm.epochs=1")


def test_the_placements_of_a_fine_tuning() -> None:
    overrides = [
        "teacher.num_envs=4",
        "teacher.decisions=2",
        "teacher.algorithm.critic=[8]",
    ]
    found = profile("vla_ppo", overrides, seconds=0.0)
    assert set(found["rates"]) == {"collocated", "disaggregated", "hybrid"}
    assert found["recommended"] in found["rates"]
    assert all(
        0.0 < rate["low"] <= rate["steps_per_s"] <= rate["high"] for rate in found["rates"].values()
    )


def test_a_recipe_without_either_is_refused() -> None:
    with pytest.raises(HandoffError, match="profile: demo has neither a fine-tuning"):
        profile("demo")


def test_the_number_of_environments_of_ppo() -> None:
    """Rates are those of the times; the first number whose interval reaches the fastest wins."""
    found = profile("reach_ppo", SMALL, seconds=0.0)
    assert list(found["rates"]) == ["1", "2", "4", "8", "16"] == list(found["seconds"])
    for count, rate in found["rates"].items():
        assert 0.0 < rate["low"] <= rate["steps_per_s"] <= rate["high"]
        whole = sum(found["seconds"][count].values())
        assert rate["steps_per_s"] == pytest.approx(4 * int(count) / whole, rel=0.9)
    fastest = max(found["rates"].values(), key=lambda rate: rate["steps_per_s"])
    chosen = found["rates"][found["recommended"]]
    assert chosen["high"] >= fastest["low"]
    assert found["rates"]["16"]["steps_per_s"] > found["rates"]["1"]["steps_per_s"]


def test_the_command_prints_the_same_as_a_table_and_as_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    profile_command("reach_ppo", SMALL, 0.0)
    printed = capsys.readouterr()
    assert "rollout [s]" in printed.out
    assert "recommended" in printed.out
    # Without a terminal, which shows the running measurement in one line, each has its own.
    assert "environments, 0 of about 1 s" in printed.err
    profile_command("reach_ppo", SMALL, 0.0, as_json=True)
    assert set(json.loads(capsys.readouterr().out)) == {"seconds", "rates", "recommended"}


def test_what_this_machine_lacks_is_said_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("flows.profiling.num_envs.profile_num_envs", pytest.fail)
    monkeypatch.setattr("flows.profiling.placement.profile_placements", pytest.fail)
    absent = ("transformers", "tokenizers", "peft", "tensordict")
    monkeypatch.setattr(
        requirements, "find_spec", lambda module: None if module in absent else object()
    )
    assert main(["profile", "vla_ppo"]) == 1
    assert capsys.readouterr().err == (
        "handoff: profile: transformers, tokenizers, peft and tensordict are not installed. Install them in the "
        "checkout: pip install -c constraints.txt -e '.[vla]'.\n"
    )
    monkeypatch.setattr(requirements, "lacking_cuda", lambda: "device cuda: none.")
    options = "{device: cuda, resident: true}"
    protocol = f"teacher.protocol={{uses: reach, engine: warp, options: {options}}}"
    assert main(["profile", "reach_ppo", protocol]) == 1
    assert capsys.readouterr().err == "handoff: profile: device cuda: none.\n"


def test_a_measurement_of_no_time_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for seconds in ("0", "-3"):
        assert main(["profile", "reach_ppo", "--seconds", seconds]) == 2
        assert "Must be > 0" in capsys.readouterr().err


def test_an_algorithm_with_a_replay_buffer_is_refused() -> None:
    with pytest.raises(HandoffError, match=r"neither .* nor RL from scratch by ppo"):
        profile("reach_fast_td3")
