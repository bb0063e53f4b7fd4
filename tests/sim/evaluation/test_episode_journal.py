"""An interrupted evaluation goes on with the batches that are missing, and its result is that of an
uninterrupted one."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from robots.interfaces import no_progress
from sim.evaluation.agent import ChunkAgent, Chunking
from sim.evaluation.evaluate import EvaluateConfig, evaluate, run_episodes
from sim.evaluation.protocol import Protocol
from sim.evaluation.rollout import EpisodeResult
from tests.forked_process import forked_process_context
from tests.interrupted import Killed
from tests.sim.line import make_line

LINE = Protocol(name="line", engine="gym", task="line", first_seed=0, episodes=6, max_steps=8)
CHUNKS = Chunking(fields=("place",), action_size=1, n_obs_steps=1, horizon=4, n_action_steps=2)
BATCH = 2


def stand(observation: np.ndarray, noise: np.ndarray) -> np.ndarray:
    return np.zeros_like(noise)


def agent(env):  # type: ignore[no-untyped-def]
    return ChunkAgent(stand, CHUNKS)


def load():  # type: ignore[no-untyped-def]
    return agent


class DiesInBatch:
    """Makes agents until its batch, counted from 0, begins."""

    def __init__(self, batch: int) -> None:
        self.left = batch

    def __call__(self, env):  # type: ignore[no-untyped-def]
        if self.left == 0:
            raise Killed
        self.left -= 1
        return agent(env)


def play(journal: Path | None, make=load, protocol: Protocol = LINE, **options):  # type: ignore[no-untyped-def]
    return run_episodes(
        protocol,
        make,
        make_line,
        BATCH,
        options.pop("workers", 1),
        options.pop("progress", no_progress),
        journal=journal,
        **options,
    )


def same(ours: list[EpisodeResult], expected: list[EpisodeResult]) -> bool:
    def plain(episode: EpisodeResult) -> tuple[object, ...]:
        trajectory = episode.trajectory or {}
        arrays = {name: (a.dtype, a.tobytes()) for name, a in trajectory.items()}
        rest = replace(episode, actions=np.zeros(0), trajectory=None)
        return repr(rest), episode.actions.dtype, episode.actions.tobytes(), arrays

    return [plain(one) for one in ours] == [plain(one) for one in expected]


@pytest.mark.parametrize("record", [False, True])
def test_only_missing_batches_are_played_and_the_result_is_the_same(
    tmp_path: Path, record: bool
) -> None:
    with pytest.raises(Killed):
        play(tmp_path, lambda: DiesInBatch(2), record=record)
    reports: list[tuple[int, int, str]] = []
    counted = DiesInBatch(1)
    resumed = play(
        tmp_path, lambda: counted, record=record, progress=lambda *report: reports.append(report)
    )
    assert counted.left == 0, "one batch of three was missing"
    assert reports[0] == (32, 48, "4 of 6 episodes kept from the interrupted attempt")
    assert reports[-1][:2] == (48, 48)
    assert same(resumed, play(None, record=record))


def die_in_the_second_batch():  # type: ignore[no-untyped-def]
    made = []

    def make(env):  # type: ignore[no-untyped-def]
        made.append(env)
        if len(made) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return agent(env)

    return make


def test_a_finished_batch_survives_kill_9(tmp_path: Path) -> None:
    process = forked_process_context().Process(
        target=play, args=(tmp_path, die_in_the_second_batch)
    )
    process.start()
    process.join(60.0)
    assert process.exitcode == -signal.SIGKILL
    counted = DiesInBatch(2)
    resumed = play(tmp_path, lambda: counted)
    assert counted.left == 0, "two batches of three were missing"
    assert same(resumed, play(None))


def test_episodes_of_another_protocol_or_cut_files_are_played_again(tmp_path: Path) -> None:
    play(tmp_path)
    assert len(list(tmp_path.iterdir())) == 3
    other = DiesInBatch(3)
    play(tmp_path, lambda: other, replace(LINE, max_steps=9))
    assert other.left == 0
    for file in tmp_path.iterdir():
        os.truncate(file, file.stat().st_size // 2)
    again = DiesInBatch(3)
    assert same(play(tmp_path, lambda: again), play(None))
    assert again.left == 0


def test_an_evaluation_leaves_no_journal(tmp_path: Path) -> None:
    journal = tmp_path / ".episodes"
    config = EvaluateConfig(batch=BATCH, videos=0)
    run = partial(evaluate, LINE, config, load, make_line, tmp_path, no_progress, {})
    metrics = run(journal=journal)
    assert not journal.exists()
    assert metrics == run()


def test_batches_with_other_specifications_are_run_again(tmp_path: Path) -> None:
    small = {"small": "always place < 450"}
    with pytest.raises(Killed):
        play(tmp_path, lambda: DiesInBatch(2), specifications=small)
    episodes = play(tmp_path, specifications={"small": "always place < 100"})
    assert [episode.specifications["small"] for episode in episodes][:2] == [97.0, -8.0]


def test_an_interrupted_evaluation_keeps_the_robustness_also_where_no_step_decides(
    tmp_path: Path,
) -> None:
    formulas = {"small": "always place < 450", "late": "always[9, 9] place < 0"}
    with pytest.raises(Killed):
        play(tmp_path, lambda: DiesInBatch(2), specifications=formulas)
    kept = play(tmp_path, lambda: DiesInBatch(1), specifications=formulas)
    assert [episode.specifications for episode in kept] == [
        episode.specifications for episode in play(None, specifications=formulas)
    ]
    assert kept[0].specifications == {"small": 447.0, "late": np.inf}
