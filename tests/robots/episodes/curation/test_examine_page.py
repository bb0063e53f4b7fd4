import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from robots.episodes.curation.examination import (
    EntryRange,
    EpisodeLag,
    ExamineConfig,
    Finding,
    StoreExamination,
)
from robots.episodes.curation.examine import examine
from robots.episodes.curation.examine_page import write_examination
from robots.interfaces import no_progress
from tests.robots.episodes.curation.teleoperation import record

VOID = {"meta", "br", "img", "link"}
OPTIONAL_END = {"html", "p", "li", "tr", "td", "th"}


class Tags(HTMLParser):
    """Collects elements and attributes, and checks that other elements than those whose end may be
    left out are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs
        if tag not in VOID | OPTIONAL_END:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        if tag not in OPTIONAL_END:
            assert self.open.pop() == tag


def examination(**changes) -> StoreExamination:
    made = StoreExamination(
        name="lift", stream="policy", rate_hz=20.0, episodes=3, steps=60, findings=()
    )
    return replace(made, **changes)


def page(made: StoreExamination, tmp_path) -> str:
    return write_examination(made, tmp_path / "examination.html").read_text()


def test_the_verdict_comes_first_and_names_the_counts(tmp_path):
    error = Finding(
        check="stuck_camera", severity="error", episodes=(2,), fields=("camera",), sentence="Stuck."
    )
    warning = replace(error, severity="warning", check="lag")
    assert "No findings: every check passed." in page(examination(), tmp_path)
    text = page(examination(findings=(warning,)), tmp_path)
    assert "No errors; 1 warning to look at" in text
    text = page(examination(findings=(error, error, warning)), tmp_path)
    assert "2 errors; 1 of 3 episodes concerned" in text
    assert text.index("class='banner bad'") < text.index("class='tiles'") < text.index("<table>")


def test_a_finding_is_a_row_with_its_episodes_and_sentence(tmp_path):
    finding = Finding(
        check="frozen_observation",
        severity="error",
        episodes=tuple(range(40)),
        fields=("joints",),
        sentence="No change.",
    )
    text = page(examination(findings=(finding,)), tmp_path)
    assert "<td>error<td>frozen observation<td>" in text
    assert "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 28 more<td>No change." in text
    whole = replace(finding, episodes=())
    assert "<td>the whole set<td>" in page(examination(findings=(whole,)), tmp_path)


def test_bars_of_the_histogram_have_heights_by_their_counts(tmp_path):
    text = page(examination(lengths=(10, 10, 12)), tmp_path)
    heights = [
        float(height)
        for height in re.findall(r"<rect [^>]*height='([\d.]+)'", text.split("Lengths")[1])
    ]
    assert heights == [138.0, 0.0, 69.0]
    assert "<title>10: 2</title>" in text


def test_long_ranges_of_lengths_are_put_into_bins(tmp_path):
    text = page(examination(lengths=tuple(range(100, 1100))), tmp_path)
    titles = re.findall(r"<title>(\d+) to (\d+): (\d+)</title>", text)
    assert len(titles) == 40
    assert titles[0] == ("100", "124", "25")


def test_an_outlier_is_a_short_bar_on_a_long_line(tmp_path):
    entry = EntryRange(
        entry="joints.joint1", unit="rad", low=-10.0, high=10.0, usual_low=-1.0, usual_high=1.0
    )
    text = page(examination(ranges=(entry,)), tmp_path).split("id='ranges'")[1]
    left, right = re.search(r"x1='(\d+)' x2='(\d+)'", text).groups()  # type: ignore[union-attr]
    width = float(re.search(r"<rect [^>]*width='([\d.]+)'", text).group(1))  # type: ignore[union-attr]
    assert width == pytest.approx((int(right) - int(left)) / 10.0)
    assert "joints.joint1 [rad]" in text


def test_lags_are_drawn_for_every_pair_of_fields(tmp_path):
    lags = tuple(
        EpisodeLag(episode=episode, action="action", observation=observation, steps=steps)
        for observation in ("joints", "gripper")
        for episode, steps in enumerate((1, 1, 4))
    )
    text = page(examination(lags=lags), tmp_path)
    assert text.count("Steps from a motion of action") == 2
    assert text.count("<title>1: 2</title>") == 2


def test_text_of_the_data_is_escaped(tmp_path):
    hostile = "<script>alert(1)</script>'\""
    text = page(
        examination(
            name=hostile,
            stream=hostile,
            findings=(
                Finding(
                    check="labels",
                    severity="error",
                    episodes=(0,),
                    fields=(hostile,),
                    sentence=hostile,
                ),
            ),
            notes=(hostile,),
            lags=(EpisodeLag(episode=0, action=hostile, observation=hostile, steps=1),),
            ranges=(
                EntryRange(
                    entry=hostile, unit=hostile, low=0.0, high=1.0, usual_low=0.0, usual_high=1.0
                ),
            ),
        ),
        tmp_path,
    )
    tags = Tags()
    tags.feed(text)
    assert "script" not in tags.names
    assert tags.open == []


def test_the_page_of_real_findings_is_well_formed_and_loads_nothing(tmp_path):
    recording = record(seed=0, episodes=6)
    recording.episodes[1]["joints"][:, 2] = np.degrees(recording.episodes[1]["joints"][:, 2])
    recording.metadata[2]["instruction"] = ""
    recording.episodes[3]["camera"][:] = 0
    made = examine(recording.in_memory(), ExamineConfig(), no_progress)
    text = page(made, tmp_path)
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert {"script", "link", "img", "iframe"}.isdisjoint(tags.names)
    assert {"src", "href", "onload"}.isdisjoint(name for name, _ in tags.attributes)
    assert "http" not in text
    for finding in made.findings:
        assert finding.check.replace("_", " ") in text
