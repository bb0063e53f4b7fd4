"""Claims of the results are repeated by their recipes, and compared with the record start by
start."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from flows.attended import run_in_order
from flows.claims import repeat
from flows.claims.claim import CLAIMS, read_claim
from flows.claims.comparison import RepeatedClaim, RepeatedFigure
from flows.claims.outcomes import OUTCOMES, recorded_outcomes
from flows.claims.repeat import check_stages, repeat_claim
from flows.commands.lineage import reproduce
from flows.config.files import CONFIGS, available
from flows.recipes.graph import stages
from flows.recipes.recipe import read_recipe
from robots.errors import HandoffError

RECIPE = """
stages:
  before: {{uses: "tests.flows.claims.playing_stages:play", with: {{skill: 0.5, protocol: {protocol}}}}}
  after: {{uses: "tests.flows.claims.playing_stages:play", with: {{skill: {skill}, protocol: {protocol}}}}}
  far: {{uses: "tests.flows.claims.playing_stages:play", with: {{first: 900}}}}
  gaps: {{uses: "tests.flows.claims.playing_stages:play", with: {{step: 2}}}}
  twin: {{uses: "tests.flows.claims.playing_stages:play_twin", with: {{episodes: 20, skill: 0.8}}}}
"""
CLAIM = """
# The skill grows by a fifth. Nothing else does.
recipe: {recipe}
seeds: [0, 1]
figures:
  after: {{stage: after, at_least: 0.6}}
  gain: {{stage: after, than: before, at_least: 0.15}}
  score: {{stage: after, of: score}}
  before: {{stage: before, at_most: 0.2, seeds: [1]}}
  twin: {{stage: twin, at_least: 0.75}}
"""


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a claim; its recipe runs in this process, without Prefect."""

    def in_order(name: str, overrides: Sequence[str], **options: Any) -> Path:
        recipe = read_recipe(name, overrides)
        return run_in_order(recipe, stages(recipe), isolate=False)

    monkeypatch.setattr(repeat, "run", in_order)
    skilled(tmp_path, 0.75)
    claim = tmp_path / "grows.yaml"
    claim.write_text(CLAIM.format(recipe=tmp_path / "skills.yaml").lstrip())
    return claim


def skilled(tmp_path: Path, skill: float, protocol: str = "aaaaaaaa") -> None:
    (tmp_path / "skills.yaml").write_text(RECIPE.format(skill=skill, protocol=protocol))


def repeated(claim: Path, runs: str = "runs", *seeds: int) -> RepeatedClaim:
    return repeat_claim(str(claim), seeds, runs=str(claim.parent / runs))


def record(claim: Path, runs: str = "runs") -> None:
    """Makes the outcomes of a repetition the record."""
    found = claim.parent / runs / "claims" / claim.stem / repeat.FILE
    (claim.parent / OUTCOMES).mkdir(exist_ok=True)
    (claim.parent / OUTCOMES / f"{claim.stem}.json").write_bytes(found.read_bytes())


def figure(result: RepeatedClaim, name: str, seed: int = 0) -> RepeatedFigure:
    (found,) = (each for each in result.figures if (each.name, each.seed) == (name, seed))
    return found


def test_the_figures_are_means_over_starts_with_intervals(written: Path) -> None:
    result = repeated(written)
    assert result.statement == "The skill grows by a fifth"
    after, gain = figure(result, "after"), figure(result, "gain")
    assert after.mean == pytest.approx(0.75, abs=0.1)
    assert 0.6 < after.low < after.mean < after.high < 0.9
    # The same draws decide both stages, so every start that was solved still is.
    assert gain.mean == pytest.approx(after.mean - figure(result, "before", 1).mean, abs=0.1)
    assert gain.low > 0.1
    assert figure(result, "twin").mean == 0.8
    assert figure(result, "twin").episodes == 20
    assert {each.seed for each in result.figures if each.name == "before"} == {1}


def test_without_a_record_the_bars_decide(written: Path) -> None:
    result = repeated(written)
    assert figure(result, "after").result == "met, not recorded"
    assert figure(result, "score").result == "no bar, not recorded"
    assert figure(result, "before", 1).result == "missed, not recorded"
    assert result.lost == ["before (seed 1)"]


def test_the_same_episodes_again_are_as_recorded_and_a_missed_bar_stays_missed(
    written: Path,
) -> None:
    first = repeated(written)
    record(written)
    again = repeated(written, "elsewhere")
    assert [each.mean for each in again.figures] == [each.mean for each in first.figures]
    assert {each.agreement for each in again.figures} == {"every start as recorded"}
    assert again.lost == []
    assert again.verdict == "reproduced: 6 of 7 bars met, 1 missed as in the record."
    stages_kept = recorded_outcomes(str(written))[0].stages
    assert stages_kept["before"].score is None
    assert stages_kept["after"].score is not None


def test_a_bar_that_was_met_and_is_missed_is_no_reproduction(written: Path, tmp_path: Path) -> None:
    repeated(written)
    record(written)
    skilled(tmp_path, 0.55)
    worse = repeated(written, "elsewhere", 0)
    assert worse.lost == ["after (seed 0)", "gain (seed 0)"]
    assert figure(worse, "after").result == "MISSED, met before, changed"
    change = figure(worse, "after").change
    assert change is not None
    assert change["high"] < 0.0


def test_a_small_change_is_within_chance_and_another_protocol_is_not_paired(
    written: Path, tmp_path: Path
) -> None:
    repeated(written)
    record(written)
    skilled(tmp_path, 0.752)
    assert figure(repeated(written, "elsewhere", 0), "after").agreement in (
        "within chance",
        "every start as recorded",
    )
    skilled(tmp_path, 0.75, "bbbbbbbb")
    other = figure(repeated(written, "third", 0), "after")
    assert other.change is None
    assert other.agreement == "recorded under another protocol"
    assert other.passed_before is True


def test_the_result_is_written_as_data_and_as_a_page(written: Path) -> None:
    result = repeated(written, "runs", 0)
    folder = written.parent / "runs" / "claims" / "grows"
    content = json.loads((folder / "claim.json").read_text())
    assert content["verdict"] == result.verdict
    assert [each["result"] for each in content["figures"]] == [
        each.result for each in result.figures
    ]
    page = (folder / "claim.html").read_text()
    assert "The skill grows by a fifth" in page
    assert result.verdict in page


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ("{a: {stage: aftr}}", "has no stage 'aftr', did you mean 'after'"),
        ("{a: {stage: after, than: far}}", "not played from the same start states"),
        ("{a: {stage: gaps}}", "no episodes of consecutive start states"),
        ("{a: {stage: twin, of: score}}", "have no score, only successes"),
        ("{a: {stage: after, seeds: [2]}}", "has the seeds \\[2\\], the claim has \\[0\\]"),
        ("{}", "has no figures"),
    ],
)
def test_a_wrong_figure_is_named(written: Path, figures: str, words: str) -> None:
    recipe = written.parent / "skills.yaml"
    written.write_text(f"recipe: {recipe}\nfigures: {figures}\n")
    with pytest.raises(HandoffError, match=words):
        repeated(written)


def test_unknown_claims_and_seeds_are_refused(written: Path) -> None:
    with pytest.raises(HandoffError, match=r"has the seeds \[0, 1\], not \[7\]"):
        repeated(written, "runs", 7)
    with pytest.raises(HandoffError, match="'reach_fast_td' does not exist, did you mean 'reach_"):
        repeat_claim("reach_fast_td")


def test_a_damaged_record_is_named(written: Path) -> None:
    repeated(written, "runs", 0)
    record(written)
    (written.parent / OUTCOMES / "grows.json").write_text('{"seeds": {"0": {}}}')
    with pytest.raises(HandoffError, match=r"cannot read .*grows\.json"):
        repeated(written, "runs", 0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "name a run, a claim by --claim"),
        ({"run": Path("demo"), "claim": ("demo",)}, "take no run"),
        ({"run": Path("demo"), "seed": (0,)}, "--seed is for a claim"),
    ],
)
def test_the_command_takes_a_run_or_a_claim(given: dict[str, Any], message: str) -> None:
    with pytest.raises(HandoffError, match=message):
        reproduce(given.pop("run", None), **given)


def test_the_command_prints_the_table_and_ends_with_an_error(
    written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = str(written.parent / "runs")
    with pytest.raises(HandoffError, match=r"claim grows: before \(seed 1\); see .*claim\.html"):
        reproduce(claim=(str(written),), runs=runs)
    record(written)
    reproduce(claim=(str(written),), runs=runs)
    printed = capsys.readouterr().out
    assert "recorded  seed 0: 0 minutes on" in printed
    assert "reproduced: 6 of 7 bars met, 1 missed as in the record." in printed


@pytest.mark.parametrize("name", available(CLAIMS))
def test_every_claim_names_stages_of_its_recipe_and_a_row_of_the_results(name: str) -> None:
    claim = read_claim(name)
    recipe = read_recipe(claim.recipe, [*claim.overrides, f"{claim.seed}={claim.seeds[0]}"])
    check_stages(name, claim, recipe)
    table = Path("docs/results/README.md").read_text()
    assert f"handoff reproduce --claim {name}`" in table
    for seed, entry in recorded_outcomes(name).items():
        assert seed in claim.seeds
        assert {*claim.stages} >= {*entry.stages}


def test_every_record_belongs_to_a_claim() -> None:
    records = {file.stem for file in (CONFIGS / CLAIMS / OUTCOMES).iterdir()}
    assert records <= {*available(CLAIMS)}
