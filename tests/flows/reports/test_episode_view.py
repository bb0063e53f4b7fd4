"""One episode as a page: pictures, plots, events, and words that could be code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from flows.reports.episode_view import MOST_PICTURES, EpisodeEvent, events, write_episode
from robots.episodes.formats.source import SourceEpisode, SourceSchema
from robots.spec import FieldSpec

STEPS = 6
FIELDS = {
    "q": FieldSpec(shape=(2,), unit="rad", names=(("a", "b"),), role="observation"),
    "front": FieldSpec(shape=(4, 5, 3), dtype="uint8", unit="u8", role="observation"),
    "action": FieldSpec(shape=(2,), role="action"),
    "action_policy": FieldSpec(shape=(2,), role="action"),
    "intervention": FieldSpec(shape=(), dtype="uint8", role="other"),
    "version": FieldSpec(shape=(), dtype="int64", role="other"),
    "success": FieldSpec(shape=(), dtype="int8", role="outcome"),
}


def arrays(steps: int = STEPS) -> dict[str, np.ndarray]:
    acted = np.zeros(steps, np.uint8)
    acted[2:4] = 1
    success = np.zeros(steps, np.int8)
    success[-1] = 1
    return {
        "q": np.linspace(0, 1, 2 * steps, dtype=np.float32).reshape(steps, 2),
        "front": np.zeros((steps, 4, 5, 3), np.uint8),
        "action": np.ones((steps, 2), np.float32),
        "action_policy": np.zeros((steps, 2), np.float32),
        "intervention": acted,
        "version": np.full(steps, 7),
        "success": success,
    }


def page(tmp_path: Path, steps: int = STEPS, **metadata: Any) -> str:
    schema = SourceSchema("arrays", "<b>fold</b>", 10.0, FIELDS)
    return write_episode(
        schema, 3, SourceEpisode(arrays(steps), metadata), tmp_path / "e.html"
    ).read_text()


def test_events_are_the_steps_at_which_flags_change() -> None:
    assert events(FIELDS, SourceEpisode(arrays(), {})) == [
        EpisodeEvent(2, "intervention becomes 1"),
        EpisodeEvent(4, "intervention becomes 0"),
        EpisodeEvent(5, "success becomes 1"),
    ]


def test_every_field_of_numbers_that_changes_has_a_plot_and_the_proposed_action_lies_in_the_action(
    tmp_path: Path,
) -> None:
    text = page(tmp_path)
    assert re.findall(r"<p class='legend'><b>(\w+)</b>", text) == [
        "q",
        "action",
        "intervention",
        "success",
    ]
    assert text.count("<polyline class='proposed'") == 2
    assert "dashed: action_policy; shaded: a person acted" in text
    assert "x='400.0'" in text, "the person acted from step 2 of 5"


def test_words_of_a_data_set_are_never_code(tmp_path: Path) -> None:
    text = page(tmp_path, note="</script><script>alert(1)</script>")
    assert text.count("<script") == 2
    assert "<b>fold</b>" not in text


def test_long_episodes_have_fewer_pictures(tmp_path: Path) -> None:
    text = page(tmp_path, steps=3 * MOST_PICTURES)
    found = re.search(r"id='data'>(.*?)</script>", text, re.DOTALL)
    assert found is not None
    data = json.loads(found[1])
    assert (data["every"], len(data["pictures"]["front"])) == (3, MOST_PICTURES)
    assert data["pictures"]["front"][0].startswith("data:image/jpeg;base64,")


def wide_page(tmp_path: Path, field: FieldSpec, values: np.ndarray) -> str:
    """The page of an episode whose action is one field of many entries."""
    schema = SourceSchema("arrays", "fold", 10.0, {"action": field})
    episode = SourceEpisode({"action": values}, {})
    return write_episode(schema, 0, episode, tmp_path / "e.html").read_text()


def test_every_entry_of_a_field_is_drawn_and_named_and_no_colour_is_used_twice_in_a_panel(
    tmp_path: Path,
) -> None:
    names = tuple(f"joint{entry}" for entry in range(26))
    values = np.arange(3)[:, None] * np.arange(26.0)
    text = wide_page(tmp_path, FieldSpec(shape=(26,), names=(names,), role="action"), values)
    assert text.count("<polyline") == 26
    assert re.findall(r"<span style='color:[^']*'>(\w+)</span>", text) == list(names)
    panels = re.findall(r"<svg class='plot'.*?</svg>", text, re.DOTALL)
    assert [panel.count("<polyline") for panel in panels] == [7, 7, 6, 6]
    for panel, legend in zip(panels, re.findall(r"<p class='legend'>.*?</p>", text), strict=True):
        drawn = re.findall(r"stroke='(#\w+)'", panel)
        assert len(set(drawn)) == len(drawn)
        assert re.findall(r"color:(#\w+)", legend) == drawn
    assert "<b>action, 4 of 4</b>" in text


def test_of_a_field_of_very_many_entries_smallest_mean_and_largest_are_drawn(
    tmp_path: Path,
) -> None:
    values = np.stack([np.arange(300.0), np.arange(300.0) * 2]).reshape(2, 100, 3)
    text = wide_page(tmp_path, FieldSpec(shape=(100, 3), role="action"), values)
    assert text.count("<polyline") == 3
    assert "largest of 300 entries</span>; 0 to 598" in text


def test_entries_of_a_matrix_are_named_by_row_and_column(tmp_path: Path) -> None:
    field = FieldSpec(shape=(2, 2), names=(("left", "right"), ("x", "y")), unit="m", role="action")
    text = wide_page(tmp_path, field, np.arange(8.0).reshape(2, 2, 2))
    assert re.findall(r"<span[^>]*>([\w.]+)</span>", text) == [
        "left.x",
        "left.y",
        "right.x",
        "right.y",
    ]
