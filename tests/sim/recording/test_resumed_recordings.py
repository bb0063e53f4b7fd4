"""An interrupted recording goes on with the first batch that is missing, and its store is that of an
uninterrupted one, file by file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from robots.episodes.episode_writer import EpisodeWriter
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import Progress, no_progress
from sim.identification.config import ExcitationConfig
from sim.identification.excitation import record_excitation
from sim.make import find_task
from sim.recording.config import ExpertDemonstrationsConfig, PlayConfig
from sim.recording.demonstrations import demonstrate
from sim.recording.play import play
from tests.interrupted import Killed, files, killed_at

SEEDS = range(5, 12)
Record = Callable[[Path, Progress], Any]


def demonstrations(out: Path, progress: Progress) -> Any:
    # Noise makes some attempts fail, so that not every seed has an episode.
    config = ExpertDemonstrationsConfig(batch=2, noise_high=0.02)
    return demonstrate(find_task("reach"), SEEDS, out, config, progress)


def all_demonstrations(out: Path, progress: Progress) -> Any:
    config = ExpertDemonstrationsConfig(batch=2, noise_high=0.02, keep="all")
    return demonstrate(find_task("reach"), SEEDS, out, config, progress)


def playing(out: Path, progress: Progress) -> Any:
    return play(find_task("reach"), SEEDS, out, PlayConfig(batch=2, steps=6), progress)


def excitation(out: Path, progress: Progress) -> Any:
    return record_excitation(ExcitationConfig(motions=3, seconds=1.0), out, progress)


@pytest.mark.parametrize("record", [demonstrations, all_demonstrations, playing, excitation])
def test_a_resumed_recording_is_that_of_an_uninterrupted_one(
    tmp_path: Path, record: Record
) -> None:
    expected = record(tmp_path / "one", no_progress)
    with pytest.raises(Killed):
        record(tmp_path / "two", killed_at(2))
    kept = EpisodeStore.open(tmp_path / "two").num_episodes
    assert 0 < kept < EpisodeStore.open(tmp_path / "one").num_episodes
    assert record(tmp_path / "two", no_progress) == expected
    assert files(tmp_path / "two") == files(tmp_path / "one")


def test_the_episodes_of_a_batch_that_was_cut_are_stored_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large batch is committed in several parts."""
    monkeypatch.setattr(EpisodeStore.writer.__wrapped__, "__defaults__", (1,))  # type: ignore[attr-defined]
    all_demonstrations(tmp_path / "one", no_progress)
    append = EpisodeWriter.append

    def die_at_the_fourth(writer: EpisodeWriter, *arguments: Any) -> int:
        if writer._committed() == 3:
            raise Killed
        return append(writer, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(EpisodeWriter, "append", die_at_the_fourth)
        with pytest.raises(Killed):
            all_demonstrations(tmp_path / "two", no_progress)
    assert EpisodeStore.open(tmp_path / "two").num_episodes == 3
    all_demonstrations(tmp_path / "two", no_progress)
    assert files(tmp_path / "two") == files(tmp_path / "one")


def test_a_finished_recording_is_not_simulated_again(tmp_path: Path) -> None:
    first = all_demonstrations(tmp_path / "store", no_progress)
    reports: list[tuple[int, int, str]] = []

    def progress(done: int, total: int, note: str = "") -> None:
        reports.append((done, total, note))

    assert all_demonstrations(tmp_path / "store", progress) == first
    assert reports == [(7, 7, "7 episodes kept from the interrupted attempt")]


@pytest.mark.parametrize("seeds", [range(20, 27), range(6, 12)])
def test_a_store_of_other_seeds_is_not_continued(tmp_path: Path, seeds: range) -> None:
    all_demonstrations(tmp_path / "store", no_progress)
    config = ExpertDemonstrationsConfig(batch=2, noise_high=0.02, keep="all")
    with pytest.raises(HandoffError, match="holds 7 other episodes"):
        demonstrate(find_task("reach"), seeds, tmp_path / "store", config)


def test_motions_of_another_seed_are_not_continued(tmp_path: Path) -> None:
    excitation(tmp_path / "store", no_progress)
    with pytest.raises(HandoffError, match="motion 0 is not one of this configuration"):
        record_excitation(ExcitationConfig(motions=3, seconds=1.0, seed=1), tmp_path / "store")
