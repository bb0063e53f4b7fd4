"""Measures how fast demonstrations are ingested and turned into training windows.

    python -m tests.benchmarks.episodes --json
    python -m tests.benchmarks.episodes --only-wait
    python -m tests.benchmarks.episodes --json --gigabytes 10
    python -m tests.benchmarks.episodes --json --lerobot PYTHON
    python -m tests.benchmarks.episodes --json --lerobot PYTHON --only-lerobot

ingest_s, stored_mb: all 206 push-T episodes with their pictures into a store, and its size
    ($HANDOFF_DATA).
vectors, gather: training windows per second without pictures (2 observed steps, 16 actions, batches
    of 256), and those of a plain NumPy gather of the same rows; `vectors_ratio` is their ratio.
pictures: windows of two pictures 96 x 96 x 3 and 16 actions per second, from an uncompressed file
    in the page cache, as a training reads them that does not fit into memory; batches of 64.
streamed: the same windows, read from the store's compressed chunks, in one process.
beside_lerobot: the same windows beside LeRobotDataset in an environment of its own, on exports of
    the same episodes, each by two processes (`tests.benchmarks.lerobot_windows`): push-T, and a
    humanoid's camera of 480 x 640 ($HANDOFF_DATA/g1_lerobot_v21). `copy`, `stream` and `video` are
    ours: pictures decoded once, those of the store's chunks, those of its videos;
    `lerobot_pictures` (PNG) and `lerobot_video` (H.264) are LeRobotDataset's. None without
    --lerobot.
loader_wait: fraction of the wall-clock time in which the training of a small picture policy waits
    for batches of 64, after its first entry: with pictures in memory (`copy`), read from the store
    (`stream`), and read by WORKERS processes (`stream_workers`); `update_s` are the seconds per
    update of each.
large_mb: peak memory of an ingest of --gigabytes of synthetic pictures.

Rates are medians of five rounds in which the contenders take turns, on all threads of the process.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from robots.episodes.formats.source import SourceEpisode, SourceSchema
from robots.spec import FieldSpec
from tests.benchmarks.lerobot_windows import beside_lerobot

ROUNDS = 5
SECONDS = 1.0
"""Length of one round of one contender [s]."""
OBSERVED, HORIZON = 2, 16
VECTOR_BATCH, PICTURE_BATCH = 256, 64
WORKERS = 2
WAIT_STEPS, WAIT_ENTRY = 60, 20
"""Updates of a training whose wait is measured, and of an entry of its curve."""
PICTURE = (480, 640, 3)
"""Pictures of the synthetic data set."""
STEPS = 100
"""Steps of one of its episodes, 92 MB of pictures."""
GIGABYTES = "HANDOFF_BENCHMARK_GIGABYTES"


class SyntheticPictures:
    """Episodes of pictures that compress a little, made when they are read.

    Args:
        gigabytes: size of all pictures [10^9 bytes].
    """

    def __init__(self, gigabytes: float) -> None:
        fields = {
            "state": FieldSpec(shape=(7,), role="observation"),
            "front": FieldSpec(shape=PICTURE, dtype="uint8", unit="u8", role="observation"),
            "action": FieldSpec(shape=(7,), role="action"),
        }
        self.schema = SourceSchema("synthetic", "synthetic", 30.0, fields)
        self._count = max(1, round(gigabytes * 1e9 / (STEPS * np.prod(PICTURE))))

    @property
    def num_episodes(self) -> int:
        """Number of episodes."""
        return self._count

    def episodes(self, first: int, stop: int) -> Iterator[SourceEpisode]:
        """The episodes `[first, stop)`."""
        for number in range(first, stop):
            rng = np.random.default_rng(number)
            coarse = rng.integers(256, size=(STEPS, 60, 80, 3), dtype=np.uint8)
            pictures = coarse.repeat(8, axis=1).repeat(8, axis=2)
            pictures += rng.integers(4, size=(STEPS, *PICTURE), dtype=np.uint8)
            vectors = rng.normal(size=(STEPS, 7)).astype(np.float32)
            yield SourceEpisode({"state": vectors, "front": pictures, "action": vectors}, {})


@contextmanager
def open_source(path: Path, images: bool) -> Iterator[SyntheticPictures]:
    """Opens the synthetic data set, as a format outside Handoff; `path` is not read."""
    yield SyntheticPictures(float(os.environ[GIGABYTES]))


def ingested(out: Path) -> dict[str, float]:
    """Ingests push-T with its pictures to the folder `out`."""
    from robots.episodes.ingest import IngestConfig, ingest
    from robots.interfaces import no_progress

    out.mkdir()
    start = time.perf_counter()
    ingest(IngestConfig(download=False), out, no_progress, shipped=out / "absent.zarr.zip")
    seconds = time.perf_counter() - start
    stored = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    return {"ingest_s": round(seconds, 2), "stored_mb": round(stored / 1e6, 2)}


def windows_per_second(demos: Path, scratch: Path) -> dict[str, float]:
    """Rates of windows of the push-T store in `demos`."""
    import torch

    from policies.data.demonstrations import open_store, read_stores
    from policies.data.frames import FrameStorage
    from policies.data.windows import Windows, window_index
    from policies.policy_config import DiffusionPolicyConfig

    model = DiffusionPolicyConfig(
        n_obs_steps=OBSERVED, horizon=HORIZON, n_action_steps=8, image_fields=("image",)
    )
    stores = [open_store("demos", demos / "store.zarr", model)]
    data = read_stores(stores, FrameStorage(0.0, scratch))
    index = window_index(data.ends_E, *model.window)
    chunk_NHA = torch.from_numpy(data.action_MA[index.action_NH])
    parts: dict[str, Any] = {
        "observation_MO": torch.from_numpy(data.observation_MO),
        "observation_NT": torch.from_numpy(index.observation_NT),
        "chunk_NHA": chunk_NHA,
        "padded_NH": torch.from_numpy(index.padded_NH),
    }
    vectors, pictures = Windows(**parts), Windows(**parts, sensors=data.sensors)
    streamed = Windows(**parts, sensors=read_stores(stores, streamed=True).sensors)
    rng = np.random.default_rng(0)

    def gather(rows_B: np.ndarray) -> Any:
        steps_BH = index.action_NH[rows_B]
        return (
            data.observation_MO[index.observation_NT[rows_B]],
            data.action_MA[steps_BH],
            index.padded_NH[rows_B],
        )

    def batches(size: int, take: Callable[[np.ndarray], Any]) -> Callable[[], int]:
        def one() -> int:
            take(rng.integers(len(chunk_NHA), size=size))
            return size

        return one

    contenders = {
        "vectors": batches(VECTOR_BATCH, lambda rows: vectors.batch(torch.from_numpy(rows))),
        "gather": batches(VECTOR_BATCH, gather),
        "pictures": batches(PICTURE_BATCH, lambda rows: pictures.batch(torch.from_numpy(rows))),
        "streamed": batches(PICTURE_BATCH, lambda rows: streamed.batch(torch.from_numpy(rows))),
    }
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name, one in contenders.items():
            one()
            rates[name].append(_rate(one))
    figures = {name: round(statistics.median(values)) for name, values in rates.items()}
    ratios = [a / b for a, b in zip(rates["vectors"], rates["gather"], strict=True)]
    return {**figures, "vectors_ratio": round(statistics.median(ratios), 3)}


def loader_wait(demos: Path, scratch: Path) -> dict[str, dict[str, float]]:
    """Fractions of the time that trainings on the store in `demos` wait for batches."""
    from policies.imitation.config import PretrainConfig
    from policies.imitation.pretrain import pretrain
    from policies.policy_config import DiffusionPolicyConfig
    from policies.training.config import TrainingConfig

    training = TrainingConfig(
        steps=WAIT_STEPS,
        learning_rate=1e-4,
        batch_size=PICTURE_BATCH,
        log_every=WAIT_ENTRY,
        preflight_seconds=0.0,
    )
    policy = DiffusionPolicyConfig(
        observation_fields=("agent",), n_obs_steps=OBSERVED, image_fields=("image",)
    )
    contenders = {
        "copy": PretrainConfig(policy=policy, training=training, validation_fraction=0.0),
        "stream": PretrainConfig(
            policy=policy, training=training, validation_fraction=0.0, frames="stream"
        ),
        "stream_workers": PretrainConfig(
            policy=policy,
            training=training,
            validation_fraction=0.0,
            frames="stream",
            workers=WORKERS,
        ),
    }
    waits: dict[str, float] = {}
    updates: dict[str, float] = {}
    for name, config in contenders.items():
        out = scratch / f"wait-{name}"
        out.mkdir()
        ends: list[float] = []

        def progress(done: int, total: int, note: str = "", ends: list[float] = ends) -> None:
            ends.append(time.perf_counter())

        pretrain(config, demos, out, progress)
        lines = (out / "loss.jsonl").read_text().splitlines()[1:]
        entries = [json.loads(line)["batch_wait"] for line in lines]
        waits[name] = round(statistics.mean(entries), 4)
        updates[name] = round((ends[-1] - ends[WAIT_ENTRY]) / (len(ends) - 1 - WAIT_ENTRY), 4)
    return {"loader_wait": waits, "update_s": updates}


def large_ingest(gigabytes: float) -> float:
    """Peak memory [MB] of an ingest of so many gigabytes, in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.episodes", "--only-large", str(gigabytes)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def _only_large(gigabytes: float) -> float:
    from robots.episodes.ingest import IngestConfig, ingest
    from robots.interfaces import no_progress

    os.environ[GIGABYTES] = str(gigabytes)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        out.mkdir()
        (Path(folder) / "data").write_text("synthetic")
        config = IngestConfig(
            data=str(Path(folder) / "data"), format="tests.benchmarks.episodes", download=False
        )
        ingest(config, out, no_progress, shipped=out / "absent.zarr.zip")
    # The largest resident set by getrusage is that of the parent process where it was larger.
    (peak,) = re.findall(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    return round(int(peak) * 1024 / 1e6, 1)


def _beside_lerobot(python: str) -> dict[str, Any]:
    data = Path(os.environ["HANDOFF_DATA"])
    with tempfile.TemporaryDirectory() as folder:
        return beside_lerobot(python, data, Path(folder))


def _rate(one: Callable[[], int]) -> float:
    done, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < SECONDS:
        done += one()
    return done / elapsed


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description="Measures ingest and training windows.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--gigabytes", type=float, default=0.0, help="size of the large data set")
    parser.add_argument("--lerobot", help="Python of an environment with LeRobot")
    parser.add_argument("--only-lerobot", action="store_true", help="measure beside_lerobot alone")
    parser.add_argument("--only-wait", action="store_true", help="measure loader_wait alone")
    parser.add_argument("--only-large", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only_large is not None:
        print(json.dumps(_only_large(options.only_large)))
        return
    if options.only_lerobot:
        if not options.lerobot:
            parser.error("--only-lerobot needs --lerobot PYTHON")
        print(json.dumps({"beside_lerobot": _beside_lerobot(options.lerobot)}))
        return
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        figures: dict[str, Any] = ingested(scratch / "demos")
        figures |= loader_wait(scratch / "demos", scratch)
        if options.only_wait:
            print(json.dumps(figures))
            return
        figures |= windows_per_second(scratch / "demos", scratch)
        figures["beside_lerobot"] = _beside_lerobot(options.lerobot) if options.lerobot else None
    figures["large_mb"] = large_ingest(options.gigabytes) if options.gigabytes else None
    if options.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:<16} {value}")


if __name__ == "__main__":
    main()
