"""What the pages about data show works: the programs run, and the commands act on the store that the
guide makes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flows.__main__ import main
from robots.episodes.store import EpisodeStore
from robots.spec import FieldSpec
from tests.documents import DOCS, blocks, commands
from tests.policies.served import CONTRACT, TOKEN, served

GUIDE = DOCS / "guides" / "data.md"
CONCEPT = DOCS / "concepts" / "episodes.md"
EDITS = ("delete", "trim", "relabel", "merge", "split", "weights", "stats", "doctor")


def program(page: Path, marker: str) -> str:
    """The Python block of a page in which `marker` stands."""
    (found,) = (
        block.text
        for block in blocks(page.read_text())
        if block.language == "python" and marker in block.text
    )
    return found


def replaced(code: str, old: str, new: str) -> str:
    """The program with other figures, which it has."""
    assert code.count(old) == 1, old
    return code.replace(old, new)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make_stores() -> None:
    """Runs the guide's program with smaller pictures, for three stores of different episodes."""
    code = replaced(program(GUIDE, "write_episodes("), "96, 128, 3", "12, 16, 3")
    for seed, name in enumerate(("towel.zarr", "monday.zarr", "tuesday.zarr")):
        named = replaced(code, '"towel.zarr"', f'"{name}"')
        exec(replaced(named, "default_rng(0)", f"default_rng({seed})"), {})


def test_the_commands_of_the_guide_run_on_the_store_that_it_makes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_stores()
    shown = [
        words
        for words in commands(GUIDE.read_text(), "handoff")
        if words[:1] == ["episodes"] and words[1] in EDITS and "STORE" not in words
    ]
    assert {words[1] for words in shown} == set(EDITS)
    for words in shown:
        code = main(words)
        said = capsys.readouterr()
        assert code == 0, f"{' '.join(words)}: {said.err}"
        if words[1] == "merge":
            assert "warning" not in said.out
    assert EpisodeStore.open(Path("week.zarr")).num_episodes == 40


def test_the_program_that_records_an_episode_runs(folder: Path) -> None:
    exec(program(CONCEPT, "RunningEpisode("), {})
    store = EpisodeStore.open(Path("recorded.zarr"))
    assert store.ends("policy").tolist() == [100]
    assert store.metadata(0) == {"operator": "ada", "success": True}


def test_the_client_of_the_guide_gets_actions_from_a_server(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    camera = FieldSpec(shape=(96, 128, 3), dtype="uint8", unit="u8")
    joints = FieldSpec(shape=(7,), unit="rad")
    seeing = replace(
        CONTRACT, n_obs_steps=1, observation={"q": joints}, sensors={"front": camera}, action=joints
    )
    monkeypatch.setenv("HANDOFF_TOKEN", TOKEN)
    with served(lambda observation, noise: np.zeros_like(noise), contract=seeing) as server:
        client = program(GUIDE, "Api-Key")
        exec(replaced(client, "ws://127.0.0.1:8000", server.uri), {})
    assert capsys.readouterr().out == "(16, 7) 10.0\n"
