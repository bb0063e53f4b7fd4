"""Measures windows of pictures beside LeRobotDataset, on the same episodes.

Every contender makes batches of the same windows (two pictures and 16 actions) in a shuffled order
over all episodes, in the same number of processes: ours as a training does (`ImitationBatches` with
`BatchWorkers`), LeRobot's by torch's DataLoader over a LeRobotDataset that our export wrote.
LeRobot's settings are those that made it fastest: pictures as uint8, workers that stay, a sampler
without ends of epochs, no other fields than those of the windows, and torchcodec where it loads.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

WORKERS = 2
"""Processes that decode, of every contender."""
AHEAD = 2
"""Batches that each of them decodes ahead."""
SETTLE = WORKERS * (AHEAD + 1)
"""Batches before the clock starts: those that were decoded while another contender ran."""
ROUNDS = 5
SECONDS = 3.0
"""Length of one round of one contender [s]."""
QUALITY_FRAMES = 64
"""Frames of the first episode whose loss by the codec is measured."""

LEROBOT = """
import itertools, json, sys, time
import torch
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.utils.import_utils import get_safe_default_video_backend
root, camera, rate, batch, workers, ahead, settle, seconds = json.loads(sys.argv[1])
backend = get_safe_default_video_backend()
steps = {camera: [-1 / rate, 0.0], "action": [step / rate for step in range(16)]}
data = LeRobotDataset(
    "local/benchmark", root=root, delta_timestamps=steps, video_backend=backend, return_uint8=True
)
order = torch.utils.data.RandomSampler(
    data, num_samples=10**6, generator=torch.Generator().manual_seed(0)
)
batches = iter(torch.utils.data.DataLoader(
    data, batch_size=batch, sampler=order, num_workers=workers, prefetch_factor=ahead
))
print(json.dumps(backend), flush=True)
for line in sys.stdin:
    for _ in range(settle):
        next(batches)
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        done += len(next(batches)["action"])
    print(json.dumps(done / (time.perf_counter() - start)), flush=True)
"""
"""Run by LeRobot's Python: one round per line of its input."""


class PictureSet(NamedTuple):
    """Episodes with one camera."""

    name: str
    data: str | None
    """Path of the data set; None is push-T."""
    camera: str
    """Name of the camera in the store."""
    observation: str
    """Observed vector in the store."""
    batch: int
    """Windows per batch."""
    videos_only: bool
    """Whether only videos are compared."""


def picture_sets(data: Path) -> tuple[PictureSet, ...]:
    """The sets that are measured; `data` is the folder with the humanoid's episodes."""
    humanoid = str(data / "g1_lerobot_v21")
    return (
        PictureSet("96x96", None, "image", "agent", 64, False),
        PictureSet(
            "480x640", humanoid, "observation.images.cam_high", "observation.state", 64, True
        ),
    )


def beside_lerobot(python: str, data: Path, scratch: Path) -> dict[str, Any]:
    """Windows per second of every contender, by set.

    Args:
        python: Python of an environment with LeRobot.
        data: folder with the humanoid's episodes, $HANDOFF_DATA.
        scratch: empty folder.
    """
    environment = lerobot_environment(python, scratch)
    return {
        chosen.name: measure(chosen, python, environment, scratch / chosen.name)
        for chosen in picture_sets(data)
    }


def measure(
    chosen: PictureSet, python: str, environment: dict[str, str], scratch: Path
) -> dict[str, Any]:
    """Rates of one set, of contenders that take turns; their ratios, and sizes and losses."""
    from robots.episodes.segments.video_codec import H264Config

    pictures = ingested(chosen, scratch / "pictures", None)
    video = ingested(chosen, scratch / "video", H264Config())
    kinds = ["video"] if chosen.videos_only else ["pictures", "video"]
    exports = {kind: scratch / f"lerobot_{kind}" for kind in kinds}
    for kind, out in exports.items():
        exported(pictures, out, videos=kind == "video")
    contenders: dict[str, Callable[[], float]] = {}
    with ExitStack() as stack:
        ways: list[tuple[str, Path, Literal["copy", "stream"]]] = [
            ("video", video, "stream"),
            ("copy", pictures, "copy"),
            ("stream", pictures, "stream"),
        ]
        if chosen.videos_only:
            del ways[1:]
        for name, demos, frames in ways:
            mine = OurWindows(chosen, demos, frames, scratch / f"files_{name}")
            contenders[name] = stack.enter_context(closing(mine)).rate
        decoders = set()
        for name, root in exports.items():
            theirs = LeRobotWindows(chosen, root, python, environment)
            contenders[f"lerobot_{name}"] = stack.enter_context(closing(theirs)).rate
            decoders.add(theirs.decoder)
        rates = {name: [] for name in contenders}
        for _ in range(ROUNDS):
            for name, rate in contenders.items():
                rates[name].append(rate())
    beside = {name: "video" if name == "video" else "pictures" for name, _, _ in ways}
    return {
        "decoder": " ".join(sorted(decoders)),
        **{name: round(statistics.median(found)) for name, found in rates.items()},
        **{
            f"{ours}_ratio": _ratio(rates[ours], rates[f"lerobot_{theirs}"])
            for ours, theirs in beside.items()
        },
        **quality(chosen, pictures, video, exports["video"]),
    }


def ingested(chosen: PictureSet, out: Path, video: Any) -> Path:
    """A store with the fields of the windows and no others, in the folder `out`."""
    from robots.episodes.config import FieldMapConfig
    from robots.episodes.ingest import IngestConfig, ingest
    from robots.interfaces import no_progress

    out.mkdir(parents=True)
    kept = {name: name for name in (chosen.camera, chosen.observation, "action")}
    mapping = FieldMapConfig(rename=kept, rest="drop")
    config = IngestConfig(data=chosen.data, map=mapping, video=video, download=False)
    ingest(config, out, no_progress, shipped=out / "absent.zarr.zip")
    return out


def exported(demos: Path, out: Path, *, videos: bool) -> None:
    """Writes the store as a LeRobot data set v3.0."""
    from robots.episodes.exports.lerobot import write_lerobot
    from robots.episodes.store import EpisodeStore

    with EpisodeStore.open(demos / "store.zarr") as store:
        write_lerobot(store, out, version="v3.0", videos=videos)


class OurWindows:
    """Batches of a store, as a training reads them."""

    def __init__(
        self, chosen: PictureSet, demos: Path, frames: Literal["copy", "stream"], scratch: Path
    ) -> None:
        import torch

        from policies.data.frames import FrameStorage
        from policies.imitation.config import PretrainConfig
        from policies.imitation.objective import ImitationBatches, prepare
        from policies.policy_config import DiffusionPolicyConfig
        from policies.training.batch_workers import BatchWorkers
        from policies.training.config import TrainingConfig

        scratch.mkdir()
        policy = DiffusionPolicyConfig(
            observation_fields=(chosen.observation,),
            image_fields=(chosen.camera,),
            anchor_field=chosen.observation,
            n_obs_steps=2,
            horizon=16,
        )
        training = TrainingConfig(steps=10**6, learning_rate=1e-4, batch_size=chosen.batch)
        config = PretrainConfig(
            policy=policy, training=training, validation_fraction=0.0, frames=frames
        )
        # Copied pictures lie in a file, as of a set that does not fit into memory.
        storage = FrameStorage(0.0, scratch)
        setup = prepare(config, demos, storage, torch.device("cpu"))
        self._workers = BatchWorkers(WORKERS, AHEAD, training.steps)
        self._batches = ImitationBatches(
            setup.split.train, setup.mixture, chosen.batch, training.seed, self._workers
        )
        self._updates = itertools.count()
        self._size = chosen.batch

    def rate(self) -> float:
        """Windows per second in one round."""
        for _ in range(SETTLE):
            self._batches(next(self._updates))
        done, start = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - start) < SECONDS:
            self._batches(next(self._updates))
            done += self._size
        return done / elapsed

    def close(self) -> None:
        """Ends the worker processes."""
        self._workers.close()


class LeRobotWindows:
    """Batches of a LeRobotDataset, in a process of its environment."""

    def __init__(
        self, chosen: PictureSet, root: Path, python: str, environment: dict[str, str]
    ) -> None:
        info = json.loads((root / "meta/info.json").read_text())
        (camera,) = (name for name in info["features"] if ".images." in name)
        settings = [str(root), camera, info["fps"], chosen.batch, WORKERS, AHEAD, SETTLE, SECONDS]
        self._process = subprocess.Popen(
            [python, "-c", LEROBOT, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.decoder = str(self._answer())
        """Decoder of videos that LeRobot chose."""

    def rate(self) -> float:
        """Windows per second in one round."""
        assert self._process.stdin is not None
        self._process.stdin.write("round\n")
        self._process.stdin.flush()
        return float(self._answer())

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"LeRobot ended with exit code {self._process.wait()}.")
        return json.loads(line)


def lerobot_environment(python: str, scratch: Path) -> dict[str, str]:
    """Environment variables of LeRobot's processes. torchcodec needs the libraries of FFmpeg, which
    a machine may lack; those in PyAV's wheel take their place."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(scratch / "hub")}
    environment = {**os.environ, **offline, "PYTHONPATH": ""}
    asked = [python, "-c", "import torchcodec"]
    if subprocess.run(asked, env=environment, capture_output=True, check=False).returncode == 0:
        return environment
    asked = [python, "-c", "import av; print(av.__file__)"]
    found = subprocess.run(asked, env=environment, capture_output=True, text=True, check=True)
    shipped = Path(found.stdout.strip()).parent.parent / "av.libs"
    links = scratch / "ffmpeg"
    links.mkdir()
    # libavcodec-7ee0753d.so.61.19.101 is libavcodec.so.61 to others.
    for library in (*shipped.glob("libav*"), *shipped.glob("libsw*")):
        name, _, version = library.name.partition(".so.")
        link = links / f"{name.partition('-')[0]}.so.{version.partition('.')[0]}"
        link.symlink_to(library)
    return {**environment, "LD_LIBRARY_PATH": f"{links}:{shipped}"}


def quality(chosen: PictureSet, pictures: Path, video: Path, lerobot: Path) -> dict[str, float]:
    """Peak signal-to-noise ratio [dB] and bytes per frame of both videos."""
    from robots.episodes.formats.lerobot import open_source
    from robots.episodes.store import EpisodeStore

    frames = slice(0, QUALITY_FRAMES)
    exact, ours = (
        EpisodeStore.open(demos / "store.zarr").read(0, "policy", [chosen.camera], frames)[
            chosen.camera
        ]
        for demos in (pictures, video)
    )
    with open_source(lerobot, True) as source:
        (camera,) = (name for name in source.schema.fields if ".images." in name)
        theirs = next(iter(source.episodes(0, 1))).arrays[camera][frames]
    count = int(EpisodeStore.open(video / "store.zarr").ends("policy")[-1])
    return {
        "video_psnr": _psnr(exact, ours),
        "lerobot_video_psnr": _psnr(exact, theirs),
        "video_bytes": _video_bytes(video) // count,
        "lerobot_video_bytes": _video_bytes(lerobot) // count,
    }


def _ratio(ours: list[float], theirs: list[float]) -> float:
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    return round(statistics.median(ratios), 2)


def _psnr(exact: np.ndarray, lossy: np.ndarray) -> float:
    error = np.square(exact.astype(np.float32) - lossy).mean()
    return round(float(10 * np.log10(255**2 / error)), 1)


def _video_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*.mp4"))
