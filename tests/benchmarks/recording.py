"""Measures how an episode is recorded while it runs: two cameras and the arm's states.

    python -m tests.benchmarks.recording --json
    python -m tests.benchmarks.recording --json --seconds 10
    python -m tests.benchmarks.recording --json --video
    python -m tests.benchmarks.recording --json --kills 200

A thread adds states at 1 kHz (joints, torques, pose: 71 numbers), another the pictures of two
cameras of 480 x 640 at 30 Hz, with the time of capture, each at its own rate as fast as it is.
Pictures are smooth scenes with the noise of a sensor, of a bank of 30.

state_p99_ms, picture_p99_ms, *_max_ms: duration of `RunningEpisode.append`.
offered, stored: pictures and states that were made, and that the committed episode has.
late: states that were made more than 5 ms after their time, for whatever reason.
waited_s: time for which `append` waited for the disk.
memory_mb: growth of the process from the 3rd second to the end.
commit_s: from the last sample to the committed episode.
stored_mb: size of the episode.

With --kills a recorder that commits episodes of 15 pictures per camera without a pause is killed
with SIGKILL after a random time, as often as that, and the store is opened and repaired each time:
committed: episodes in the store; it is an error if there are fewer than those whose `commit` had
    returned.
recovered: running episodes that were recovered.
wrong: episodes with a sample that is missing or not the one that was recorded.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from robots.episodes.running_episode import RunningEpisode, recover_interrupted
from robots.episodes.schema import EpisodeSchema, StreamSpec, with_videos
from robots.episodes.segments.video_codec import H264Config
from robots.episodes.store import EpisodeStore
from robots.spec import FieldSpec

CAMERAS = ("front", "wrist")
PICTURE = (480, 640, 3)
CAMERA_HZ, STATE_HZ = 30.0, 1000.0
LATE = 5e-3
"""Delay from which a state counts as late [s]."""
BANK = 30


def schema() -> EpisodeSchema:
    """States of an arm, and two cameras."""
    joints = ("q", "dq", "q_d", "dq_d", "tau_J", "tau_J_d", "tau_ext")
    state = {name: FieldSpec(shape=(7,), dtype="float64") for name in joints}
    state |= {
        "base_T_ee": FieldSpec(shape=(4, 4), dtype="float64", unit="m"),
        "wrench": FieldSpec(shape=(6,), dtype="float64", unit="N"),
        "time": FieldSpec(shape=(), dtype="float64", unit="s"),
    }
    picture = {
        "image": FieldSpec(shape=PICTURE, dtype="uint8", unit="u8"),
        "time": FieldSpec(shape=(), dtype="float64", unit="s"),
    }
    streams = {"robot": StreamSpec(rate_hz=STATE_HZ, fields=state)}
    streams |= {name: StreamSpec(rate_hz=CAMERA_HZ, fields=picture) for name in CAMERAS}
    return EpisodeSchema(name="recording", streams=streams)


def pictures(seed: int) -> np.ndarray:
    """(BANK, *PICTURE) pictures of a smooth scene that moves, with noise of 2 of 255."""
    rng = np.random.default_rng(seed)
    height, width, _ = PICTURE
    coarse = rng.uniform(0, 255, (height // 40 + 2, width // 40 + 2, 3))
    rows, columns = np.mgrid[0:height, 0:width] / 40.0
    bank = []
    for number in range(BANK):
        i, j = (rows + number / BANK), (columns + number / BANK)
        r, c = i.astype(int), j.astype(int)
        u, v = (i - r)[..., None], (j - c)[..., None]
        scene = (1 - u) * ((1 - v) * coarse[r, c] + v * coarse[r, c + 1]) + u * (
            (1 - v) * coarse[r + 1, c] + v * coarse[r + 1, c + 1]
        )
        bank.append(np.clip(scene + rng.normal(0, 2, PICTURE), 0, 255).astype(np.uint8))
    return np.stack(bank)


def paced(rate: float, seconds: float, act: Callable[[int, float], None]) -> int:
    """Calls `act` with a number and its time [s], at a rate; returns how many calls were late."""
    began, late = time.perf_counter(), 0
    for number in range(round(rate * seconds)):
        due = number / rate
        wait = began + due - time.perf_counter()
        if wait > 0:
            time.sleep(wait)
        late += time.perf_counter() - began - due > LATE
        act(number, due)
    return late


def record(episode: RunningEpisode, seconds: float) -> dict[str, Any]:
    """Records for some seconds; durations of `append` and counts."""
    bank = [pictures(seed) for seed in range(len(CAMERAS))]
    state = {
        name: np.zeros(field.shape) for name, field in schema().streams["robot"].fields.items()
    }
    took: dict[str, list[float]] = {"state": [], "picture": []}
    late = [0]

    def add(kind: str, stream: str, sample: dict[str, np.ndarray]) -> None:
        began = time.perf_counter()
        episode.append(stream, sample)
        took[kind].append(time.perf_counter() - began)

    def add_state(number: int, due: float) -> None:
        add("state", "robot", {**state, "time": np.array(due)})

    def add_pictures(number: int, due: float) -> None:
        for camera, images in zip(CAMERAS, bank, strict=True):
            add("picture", camera, {"image": images[number % BANK], "time": np.array(due)})

    def states() -> None:
        late[0] = paced(STATE_HZ, seconds, add_state)

    memory: list[int] = []
    process = psutil.Process()
    timer = threading.Timer(min(3.0, seconds / 2), lambda: memory.append(process.memory_info().rss))
    timer.start()
    thread = threading.Thread(target=states)
    thread.start()
    paced(CAMERA_HZ, seconds, add_pictures)
    thread.join()
    figures: dict[str, Any] = {}
    for kind, times in took.items():
        figures[f"{kind}_p50_ms"] = round(float(np.median(times)) * 1e3, 3)
        figures[f"{kind}_p99_ms"] = round(float(np.quantile(times, 0.99)) * 1e3, 3)
        figures[f"{kind}_max_ms"] = round(max(times) * 1e3, 2)
    figures["offered"] = {kind: len(times) for kind, times in took.items()}
    figures["late"] = late[0]
    figures["waited_s"] = round(episode.waited, 3)
    figures["memory_mb"] = round((process.memory_info().rss - memory[0]) / 1e6, 1)
    return figures


def measure(seconds: float, folder: Path, *, video: bool) -> dict[str, Any]:
    """Records one episode to a new store below `folder`, and counts what it has."""
    codec = H264Config() if video else None
    with EpisodeStore.create(folder / "store.zarr", with_videos(schema(), codec)) as store:
        episode = RunningEpisode(store)
        figures = record(episode, seconds)
        began = time.perf_counter()
        episode.commit({})
        figures["commit_s"] = round(time.perf_counter() - began, 2)
    stored = EpisodeStore.open(folder / "store.zarr")
    lengths = {name: int(stored.ends(name)[0]) for name in stored.schema.streams}
    figures["stored"] = {
        "state": lengths["robot"],
        "picture": sum(lengths[name] for name in CAMERAS),
    }
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    figures["stored_mb"] = round(size / 1e6, 1)
    return {"seconds": seconds, **figures}


STEPS = 15
"""Pictures per camera of an episode of `--kills`."""


def picture(number: int) -> np.ndarray:
    """Picture `number`, which tells its number in every value."""
    return np.full(PICTURE, number % 251, np.uint8)


def record_for_ever(path: Path, promised: Path) -> None:
    """Commits episodes until it is killed; notes a byte before the first, and after each."""
    store = EpisodeStore.open(path, "a")
    fields = schema().streams["robot"].fields
    with promised.open("ab", buffering=0) as note:
        note.write(b"o")
        while True:
            episode = RunningEpisode(store)
            for number in range(STEPS):
                rows = {name: np.full((33, *field.shape), number) for name, field in fields.items()}
                episode.extend("robot", rows)
                for camera in CAMERAS:
                    episode.append(camera, {"image": picture(number), "time": np.array(number)})
            episode.commit({})
            note.write(b"c")


def fault(store: EpisodeStore, episode: int) -> str:
    """Which sample of an episode is missing or not the one that was recorded; empty if none is."""
    cut = store.metadata(episode).get("discard_reason")
    for camera in CAMERAS:
        read = store.read(episode, camera)
        for number, image in enumerate(read["image"]):
            if not (np.array_equal(image, picture(number)) and read["time"][number] == number):
                return f"{episode} ({cut}): {camera} {number} of {len(read['time'])}"
        if len(read["time"]) < STEPS and not cut:
            return f"{episode}: {camera} has {len(read['time'])}"
    state = store.read(episode, "robot", ["q"])["q"]
    if not np.array_equal(state[:, 0], np.repeat(np.arange(STEPS), 33)[: len(state)]):
        return f"{episode} ({cut}): robot, {len(state)} samples"
    return ""


def killed(kills: int, seed: int, folder: Path) -> dict[str, Any]:
    """Kills recorders, and counts what the store has."""
    path, promised = folder / "store.zarr", folder / "promised"
    EpisodeStore.create(path, schema()).close()
    chance = random.Random(seed)
    context = multiprocessing.get_context("spawn")
    kept, recovered, checked = 0, 0, 0
    wrong: list[str] = []
    for _ in range(kills):
        promised.write_bytes(b"")
        recorder = context.Process(target=record_for_ever, args=(path, promised))
        recorder.start()
        while not promised.stat().st_size:
            time.sleep(0.01)
        time.sleep(chance.uniform(0.0, 1.0))
        recorder.kill()
        recorder.join()
        kept += promised.stat().st_size - 1
        with EpisodeStore.open(path, "a") as store:
            committed = store.num_episodes - recovered
            recovered += recover_interrupted(store, log=lambda line: None)
            if committed < kept:
                raise SystemExit(f"{committed} episodes are there, {kept} had been committed")
            kept = committed
        store = EpisodeStore.open(path)
        wrong += filter(
            None, (fault(store, number) for number in range(checked, store.num_episodes))
        )
        checked = store.num_episodes
    return {"kills": kills, "seed": seed, "committed": kept, "recovered": recovered, "wrong": wrong}


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--video", action="store_true", help="pictures as H.264")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="folder of the store; default: a temporary one")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        if arguments.kills:
            figures = killed(arguments.kills, arguments.seed, Path(folder))
        else:
            figures = measure(arguments.seconds, Path(folder), video=arguments.video)
    if arguments.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:<16} {value}")


if __name__ == "__main__":
    main()
