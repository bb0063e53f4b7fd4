"""robomimic's own loader reads what Handoff exports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from robots.episodes.exports.robomimic import write_robomimic
from tests.robots.episodes.exports.test_robomimic import LENGTHS, episode_arrays, make_store

pytestmark = [pytest.mark.peers, pytest.mark.needs("index"), pytest.mark.timeout(600)]
LOAD = """
import sys, numpy as np
import robomimic.utils.obs_utils as obs_utils
from robomimic.utils.dataset import SequenceDataset
obs_utils.initialize_obs_utils_with_obs_specs({"obs": {"low_dim": ["state"], "rgb": ["camera"]}})
dataset = SequenceDataset(
    hdf5_path=sys.argv[1], obs_keys=("state", "camera"),
    dataset_keys=("actions", "rewards", "dones"), seq_length=1, load_next_obs=True,
    filter_by_attribute=sys.argv[3] or None, hdf5_cache_mode=sys.argv[4] or None,
)
rows = [dataset[index] for index in range(len(dataset))]
arrays = {key: np.concatenate([np.asarray(row[key]) for row in rows])
          for key in ("actions", "rewards", "dones")}
for group in ("obs", "next_obs"):
    for key in ("state", "camera"):
        arrays[f"{group}/{key}"] = np.concatenate([np.asarray(row[group][key]) for row in rows])
np.savez(sys.argv[2], **arrays)
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of an environment with robomimic; torch, NumPy and h5py are those of the tests."""
    folder = tmp_path_factory.mktemp("peer") / "venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "setuptools<81", "wheel", "termcolor"], check=True)
    # Its requirement egl_probe is for rendering, and is compiled with CMake.
    command = [*pip, "--no-deps", "--no-build-isolation", "robomimic==0.3.0"]
    subprocess.run(command, check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    ours = next(path for path in map(Path, sys.path) if (path / "h5py").is_dir())
    (site / "tests.pth").write_text(f"{ours}\n")
    return python


def load(
    python: Path, path: Path, out: Path, mask: str = "", cache: str = ""
) -> dict[str, np.ndarray]:
    """Arrays of all steps by robomimic's `SequenceDataset`."""
    environment = {**os.environ, "PYTHONPATH": "", "CUDA_VISIBLE_DEVICES": ""}
    command = [python, "-c", LOAD, path, out, mask, cache]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    with np.load(out) as arrays:
        return dict(arrays)


@pytest.mark.parametrize("cache", ["", "low_dim", "all"])
def test_its_dataset_has_every_step_of_the_store(python, tmp_path, cache):
    write_robomimic(make_store(tmp_path / "s"), tmp_path / "d.hdf5")
    loaded = load(python, tmp_path / "d.hdf5", tmp_path / "out.npz", cache=cache)
    given = [episode_arrays(number) for number in range(3)]
    for key, name in (("obs/state", "state"), ("obs/camera", "camera"), ("actions", "action")):
        np.testing.assert_array_equal(loaded[key], np.concatenate([g[name] for g in given]))
    rewards = np.concatenate([g["reward"][:, 0] for g in given])
    np.testing.assert_array_equal(loaded["rewards"], rewards)
    following = [np.concatenate([g["state"][1:], g["state"][-1:]]) for g in given]
    np.testing.assert_array_equal(loaded["next_obs/state"], np.concatenate(following))
    assert loaded["dones"].sum() == 3


def test_its_filter_keys_are_the_splits(python, tmp_path):
    write_robomimic(make_store(tmp_path / "s"), tmp_path / "d.hdf5")
    loaded = load(python, tmp_path / "d.hdf5", tmp_path / "out.npz", mask="valid")
    np.testing.assert_array_equal(loaded["actions"], episode_arrays(2)["action"])
    loaded = load(python, tmp_path / "d.hdf5", tmp_path / "out.npz", mask="train")
    assert len(loaded["actions"]) == LENGTHS[0] + LENGTHS[1]
