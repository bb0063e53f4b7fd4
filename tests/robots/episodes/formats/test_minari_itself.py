"""Minari's own loader reads the synthetic sets, and Handoff reads what Minari wrote."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from robots.episodes.formats.minari import open_source
from robots.errors import HandoffError
from tests.robots.episodes.formats.hdf5_files import LENGTHS, write_minari_folder

pytestmark = [pytest.mark.peers, pytest.mark.needs("index"), pytest.mark.timeout(600)]
# Version 0.5.4 imports Pillow without asking for it.
PACKAGES = ("minari[hdf5]==0.5.4", "pillow")
READ = """
import sys, numpy as np, minari
dataset = minari.MinariDataset(sys.argv[1])
arrays = {}
for number, episode in enumerate(dataset.iterate_episodes()):
    for key, value in episode.observations.items():
        parts = enumerate(value) if isinstance(value, tuple) else [(None, value)]
        for part, array in parts:
            if key != "mission":
                name = key if part is None else f"{key}/_index_{part}"
                arrays[f"{number}/observations/{name}"] = np.asarray(array)
    for key in ("actions", "rewards", "terminations", "truncations"):
        arrays[f"{number}/{key}"] = np.asarray(getattr(episode, key))
np.savez(sys.argv[2], **arrays)
"""
WRITE = """
import sys, numpy as np, minari, gymnasium
from minari.data_collector.episode_buffer import EpisodeBuffer
spaces = gymnasium.spaces
space = spaces.Dict({
    "state": spaces.Box(-9, 9, (5,)),
    "image": spaces.Box(0, 255, (32, 40, 3), np.uint8),
    "pair": spaces.Tuple((spaces.Box(-9, 9, (2,)), spaces.Discrete(7))),
})
buffers = []
for number, steps in enumerate((4, 6, 3)):
    rng = np.random.default_rng(number)
    buffers.append(EpisodeBuffer(
        id=number, seed=number + 5,
        observations={
            "state": rng.normal(size=(steps + 1, 5)).astype(np.float32),
            "image": rng.integers(0, 256, (steps + 1, 32, 40, 3)).astype(np.uint8),
            "pair": (rng.normal(size=(steps + 1, 2)).astype(np.float32),
                     rng.integers(0, 7, steps + 1)),
        },
        actions=rng.normal(size=(steps, 2)).astype(np.float32),
        rewards=rng.normal(size=steps).tolist(),
        terminations=[False] * (steps - 1) + [True], truncations=[False] * steps,
        infos={"success": np.arange(steps + 1) == 6, "inner": {"x": rng.normal(size=steps + 1)}},
    ))
minari.create_dataset_from_buffers(
    sys.argv[1], buffers, observation_space=space, action_space=spaces.Box(-9, 9, (2,)),
    data_format=sys.argv[2], jpeg_encoding=sys.argv[3] == "jpeg",
)
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of an environment with Minari."""
    folder = tmp_path_factory.mktemp("peer") / "venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *PACKAGES], check=True)
    return python


def run(python: Path, script: str, home: Path, *words: str | Path) -> None:
    environment = {**os.environ, "PYTHONPATH": "", "MINARI_DATASETS_PATH": str(home)}
    command = [python, "-c", script, *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def loaded(python: Path, path: Path, out: Path) -> dict[str, np.ndarray]:
    """Arrays of a data set by Minari's loader."""
    run(python, READ, path.parent, path / "data", out)
    with np.load(out) as arrays:
        return dict(arrays)


def assert_equal(path: Path, theirs: dict[str, np.ndarray]) -> None:
    """Checks that Handoff's reader gives every array of Minari's loader, without the observation
    after the last action."""
    with open_source(path, True) as source:
        read = list(source.episodes(0, source.num_episodes))
    assert len(read) == len(LENGTHS)
    for key, array in theirs.items():
        number, _, name = key.partition("/")
        steps = LENGTHS[int(number)]
        np.testing.assert_array_equal(read[int(number)].arrays[name], array[:steps])
        assert len(array) == steps + name.startswith("observations")


def test_its_loader_reads_the_synthetic_set_as_we_do(python, tmp_path):
    path = write_minari_folder(tmp_path / "d")
    theirs = loaded(python, path, tmp_path / "out.npz")
    assert len(theirs) == 3 * 8
    assert_equal(path, theirs)


@pytest.mark.parametrize("pictures", ["jpeg", "raw"])
def test_we_read_what_it_wrote_as_its_loader_does(python, tmp_path, pictures):
    run(python, WRITE, tmp_path, "house/drawer-v0", "hdf5", pictures)
    path = tmp_path / "house" / "drawer-v0"
    theirs = loaded(python, path, tmp_path / "out.npz")
    assert theirs["0/observations/image"].shape == (5, 32, 40, 3)
    assert_equal(path, theirs)
    with open_source(path, True) as source:
        read = list(source.episodes(0, 3))
        assert source.schema.task == "house/drawer-v0"
        assert source.schema.fields["observations/image"].unit == "u8"
    assert [episode.metadata["seed"] for episode in read] == [5, 6, 7]
    assert [episode.metadata["success"] for episode in read] == [False, True, False]


def test_its_arrow_storage_is_refused(python, tmp_path):
    subprocess.run([python, "-m", "pip", "install", "--quiet", "pyarrow"], check=True)
    run(python, WRITE, tmp_path, "house/drawer-v0", "arrow", "raw")
    with (
        pytest.raises(HandoffError, match="stored as 'arrow'"),
        open_source(tmp_path / "house" / "drawer-v0", True),
    ):
        pass
