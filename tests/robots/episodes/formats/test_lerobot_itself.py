"""LeRobot loads what Handoff writes, and Handoff reads what LeRobot writes, with equal numbers."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from robots.episodes.exports.lerobot import write_lerobot
from robots.episodes.formats.lerobot import open_source
from robots.episodes.store import EpisodeStore
from tests.robots.episodes.exports.test_lerobot import make_store
from tests.robots.episodes.formats import lerobot_files as files
from tests.robots.episodes.formats.lerobot_environment import install, lacking

pytestmark = [
    pytest.mark.peers,
    pytest.mark.needs("index"),
    pytest.mark.timeout(900),
    pytest.mark.skipif(lacking() is not None, reason=str(lacking())),
]

LOAD = """
import sys
from pathlib import Path
import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset

data = LeRobotDataset("a/b", root=Path(sys.argv[1]), video_backend="pyav")
columns = {}
for number in range(len(data)):
    for name, value in data[number].items():
        columns.setdefault(name, []).append(value if isinstance(value, str) else value.numpy())
stats = {f"stats/{name}": data.meta.stats[name]["q90"] for name in ("action", sys.argv[3])}
np.savez(sys.argv[2], **{name: np.array(values) for name, values in columns.items()}, **stats)
"""
WRITE = """
import sys
from pathlib import Path
import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset

features = {
    "observation.state": {"dtype": "float32", "shape": (3,), "names": ["a", "b", "c"]},
    "observation.grip": {"dtype": "float32", "shape": (1,), "names": None},
    "observation.points": {"dtype": "float64", "shape": (2, 3), "names": None},
    "observation.images.front": {"dtype": "video", "shape": (48, 64, 3), "names": None},
    "observation.images.png": {"dtype": "image", "shape": (48, 64, 3), "names": None},
    "observation.images.depth": {
        "dtype": "video", "shape": (48, 64, 1), "names": None, "info": {"is_depth_map": True},
    },
    "observation.images.tiff": {
        "dtype": "image", "shape": (48, 64, 1), "names": None, "info": {"is_depth_map": True},
    },
    "words": {"dtype": "string", "shape": (1,), "names": None},
    "action": {"dtype": "float32", "shape": (2,), "names": {"motors": ["x", "y"]}},
    "next.done": {"dtype": "bool", "shape": (1,), "names": None},
}
for name, feature in features.items():
    if "images" in name:
        feature["names"] = ["height", "width", "channels"]
data = LeRobotDataset.create(
    "a/b", fps=10, features=features, root=Path(sys.argv[1]), robot_type="toy", use_videos=True
)
rng = np.random.default_rng(0)
y, x = np.mgrid[0:48, 0:64]
for episode, length in enumerate((7, 12, 5)):
    for step in range(length):
        waves = [128 + 100 * np.sin((x + 3 * step + 20 * episode) / (9 + i)) for i in range(3)]
        shown = np.stack(waves, -1).astype(np.uint8)
        depth = (500 + 20 * x + 10 * y + 7 * step + 100 * episode).astype(np.uint16)[..., None]
        data.add_frame({
            "observation.state": rng.normal(size=3).astype("f4"),
            "observation.grip": rng.normal(size=1).astype("f4"),
            "observation.points": rng.normal(size=(2, 3)),
            "observation.images.front": shown,
            "observation.images.png": shown,
            "observation.images.depth": depth,
            "observation.images.tiff": depth,
            "words": "left",
            "action": rng.normal(size=2).astype("f4"),
            "next.done": np.array([step == length - 1]),
            "task": "pick" if step < 3 or episode != 1 else "place",
        })
    data.save_episode(parallel_encoding=False)
data.finalize()
"""


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Python of an environment with LeRobot; the environment has 2 GB and is deleted at the end."""
    folder = tmp_path_factory.mktemp("lerobot") / "venv"
    yield install(folder)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> EpisodeStore:
    return make_store(tmp_path_factory.mktemp("store") / "s.zarr")


def run(peer: Path, folder: Path, *arguments: str | Path) -> None:
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "hub")}
    environment = {**os.environ, **offline, "PYTHONPATH": ""}
    command = [peer, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environment, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def loaded(peer: Path, root: Path, folder: Path) -> dict[str, np.ndarray]:
    """Every item of a data set as LeRobot gives it, by name; pictures as (T, height, width, 3)."""
    run(peer, folder, "-c", LOAD, root, folder / "items.npz", "observation.images.front")
    with np.load(folder / "items.npz") as items:
        arrays = dict(items)
    for name, array in arrays.items():
        if ".images." in name and array.ndim == 4:
            arrays[name] = np.moveaxis(array, 1, -1)
            if array.shape[1] == 3:
                arrays[name] = np.rint(arrays[name] * 255)
    return arrays


def read(root: Path) -> dict[str, np.ndarray]:
    with open_source(root, True) as source:
        episodes = list(source.episodes(0, source.num_episodes))
    return {name: np.concatenate([e.arrays[name] for e in episodes]) for name in episodes[0].arrays}


def assert_equal(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    for name in ours.keys() - {"instruction"}:
        array = theirs[name]
        if ours[name].dtype == np.float64:
            # LeRobot gives every floating number in single precision.
            np.testing.assert_allclose(ours[name], array.reshape(ours[name].shape), rtol=1e-6)
        else:
            np.testing.assert_array_equal(ours[name], array.reshape(ours[name].shape))


@pytest.mark.parametrize("videos", [True, False])
@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
def test_lerobot_loads_our_export(
    peer: Path,
    store: EpisodeStore,
    tmp_path: Path,
    version: Literal["v3.0", "v2.1"],
    videos: bool,
) -> None:
    root = tmp_path / "d"
    write_lerobot(store, root, version=version, videos=videos)
    ours = read(root)
    if version == "v2.1":
        convert = "lerobot.scripts.convert_dataset_v21_to_v30"
        run(peer, tmp_path, "-m", convert, "--repo-id=a/b", "--root", root, "--push-to-hub=false")
        assert_equal(read(root), ours)
    theirs = loaded(peer, root, tmp_path)
    assert len(theirs["action"]) == 24
    assert_equal(ours, theirs)
    tasks = ["task 0"] * 7 + ["task 1"] * 12 + ["task 0"] * 5
    assert theirs["task"].tolist() == tasks
    assert theirs["stats/action"].shape == (2,)
    assert theirs["stats/observation.images.front"].shape == (3, 1, 1)


def test_we_read_what_lerobot_writes(peer: Path, tmp_path: Path) -> None:
    root = tmp_path / "d"
    run(peer, tmp_path, "-c", WRITE, root)
    ours = read(root)
    assert len(ours) == 10
    assert ours["observation.images.depth"].dtype == np.uint16
    theirs = loaded(peer, root, tmp_path)
    assert_equal(ours, theirs)


def test_lerobot_reads_the_files_of_the_tests(peer: Path, tmp_path: Path) -> None:
    root = files.write_v3(tmp_path / "d")
    # LeRobot 0.6 has pictures' channels last.
    last = {"dtype": "image", "shape": [12, 16, 3], "names": ["height", "width", "channels"]}
    files.change_info(root, features={**files.FEATURES, files.WRIST: last})
    (root / "meta/stats.json").write_text(
        '{"action": {"q90": [0, 0]}, "observation.images.front": {"q90": [[[0]], [[0]], [[0]]]}}'
    )
    assert_equal(read(root), loaded(peer, root, tmp_path))
