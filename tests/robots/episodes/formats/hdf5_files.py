"""Writes tiny data sets in the HDF5 formats: three episodes each, deterministic."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np

LENGTHS = (4, 6, 3)
Arrays = dict[str, np.ndarray]


def dataset(file: h5py.File, name: str) -> Any:
    """The array of a file called `name`."""
    return file[name]


def episode_arrays(episode: int, extra: int = 0) -> Arrays:
    """State and camera with `extra` rows more than the action and the reward."""
    rng = np.random.default_rng(episode)
    steps = LENGTHS[episode]
    return {
        "state": rng.normal(size=(steps + extra, 5)),
        "camera": rng.integers(0, 256, (steps + extra, 8, 10, 3)).astype(np.uint8),
        "actions": rng.uniform(-1, 1, (steps, 7)).astype(np.float32),
        "rewards": rng.uniform(size=steps).astype(np.float32),
    }


def write_robomimic_file(path: Path, numbers: tuple[int, ...] = (2, 9, 10)) -> Path:
    """Episodes called demo_2, demo_9 and demo_10, of robosuite."""
    kwargs = {"control_freq": 20, "robots": ["Panda"], "reward_shaping": False}
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["total"] = sum(LENGTHS)
        data.attrs["env_args"] = json.dumps({"env_name": "Lift", "type": 1, "env_kwargs": kwargs})
        for episode, number in enumerate(numbers):
            arrays = episode_arrays(episode)
            demo = data.create_group(f"demo_{number}")
            demo.attrs["num_samples"] = LENGTHS[episode]
            demo.attrs["model_file"] = "<mujoco/>"
            demo["actions"] = arrays["actions"]
            demo["rewards"] = (np.arange(LENGTHS[episode]) == 5).astype(np.float64)
            demo["dones"] = np.arange(LENGTHS[episode]) == LENGTHS[episode] - 1
            demo["states"] = np.full((LENGTHS[episode], 9), episode, np.float64)
            for group in ("obs", "next_obs"):
                demo[f"{group}/robot0_eef_quat"] = arrays["state"][:, :4]
                demo[f"{group}/agentview_image"] = arrays["camera"]
        file["mask/train"] = np.array([f"demo_{n}" for n in numbers[:2]], dtype="S8")
        file["mask/valid"] = np.array([f"demo_{n}" for n in numbers[2:]], dtype="S8")
    return path


def write_isaaclab_file(path: Path, version: int | None = 1) -> Path:
    """Episodes of Isaac Lab with nested states."""
    with h5py.File(path, "w") as file:
        if version is not None:
            file.attrs["format_version"] = version
        data = file.create_group("data")
        data.attrs["total"] = sum(LENGTHS)
        sim = {"dt": 0.005, "decimation": 4, "render_interval": 4, "num_envs": 1}
        name = "Isaac-Stack-Cube-Franka-v0"
        data.attrs["env_args"] = json.dumps({"env_name": name, "type": 2, "sim_args": sim})
        for episode, steps in enumerate(LENGTHS):
            arrays = episode_arrays(episode)
            demo = data.create_group(f"demo_{episode}")
            demo.attrs.update({"num_samples": steps, "seed": episode + 7, "success": episode != 1})
            pose = np.arange(steps * 7, dtype=np.float32).reshape(steps, 7)
            content = {
                "actions": arrays["actions"],
                "processed_actions": arrays["actions"] * 2,
                "obs/joint_pos": arrays["state"].astype(np.float32),
                "obs/eef_quat": pose[:, 3:],
                "obs/datagen_info/eef_pose/arm": np.tile(np.eye(4), (steps, 1, 1)),
                "states/articulation/robot/root_pose": pose,
                "initial_state/articulation/robot/root_pose": pose[:1],
            }
            for key, array in content.items():
                demo.create_dataset(key, data=array, compression="gzip")
    return path


def write_maniskill_files(path: Path, **more: Any) -> Path:
    """Trajectories with nested observations, and the JSON file beside them."""
    kwargs = {"obs_mode": "rgb+depth", "control_mode": "pd_ee_delta_pose"}
    entries = []
    with h5py.File(path, "w") as file:
        for episode, steps in enumerate(LENGTHS):
            arrays = episode_arrays(episode, extra=1)
            group = file.create_group(f"traj_{episode}", track_order=True)
            camera = "obs/sensor_data/base_camera"
            depth = (arrays["camera"][..., :1] * 4).astype(np.int16)
            content = {
                "obs/agent/qpos": arrays["state"].astype(np.float32),
                f"{camera}/rgb": arrays["camera"],
                f"{camera}/depth": depth,
                "actions": arrays["actions"],
                "terminated": np.arange(steps) == steps - 1,
                "truncated": np.zeros(steps, bool),
                "success": np.full(steps, episode == 2),
                "env_states/actors/cube": arrays["state"],
            }
            for key, array in content.items():
                group.create_dataset(key, data=array, compression="gzip")
            entries.append(
                {
                    "episode_id": episode,
                    "episode_seed": episode + 30,
                    "control_mode": "pd_ee_delta_pose",
                    "elapsed_steps": steps,
                    "reset_kwargs": {},
                    "success": episode == 2,
                }
            )
    info = {"env_id": "PickCube-v1", "env_kwargs": {**kwargs, **more}, "max_episode_steps": 50}
    content = {"env_info": info, "commit_info": {}, "episodes": entries}
    path.with_suffix(".json").write_text(json.dumps(content))
    return path


def jpeg(picture: np.ndarray) -> bytes:
    """A picture as JPEG of the best quality without thinned-out colours."""
    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(picture).save(content, "JPEG", quality=100, subsampling=0)
    return content.getvalue()


def smooth_pictures(episode: int, extra: int = 0) -> np.ndarray:
    """Pictures (T, 32, 40, 3) of a gradient with a red corner, which JPEG keeps well."""
    steps = LENGTHS[episode] + extra
    pictures = np.zeros((steps, 32, 40, 3), np.uint8)
    pictures[..., 0] = np.linspace(0, 200, 40).astype(np.uint8)
    pictures[..., 1] = 8 * episode
    pictures[..., 2] = np.arange(steps, dtype=np.uint8)[:, None, None] * 9
    pictures[:, :16, :16] = (250, 10, 20)
    return pictures


def write_aloha_folder(path: Path, compress: bool = False) -> Path:
    """Files episode_8, episode_9 and episode_10, encoded as ALOHA does."""
    path.mkdir()
    for episode, steps in enumerate(LENGTHS):
        rng = np.random.default_rng(episode)
        with h5py.File(path / f"episode_{episode + 8}.hdf5", "w") as file:
            file.attrs["sim"] = False
            file["observations/qpos"] = rng.normal(size=(steps, 14)).astype(np.float32)
            file["observations/qvel"] = rng.normal(size=(steps, 14)).astype(np.float32)
            file["action"] = rng.normal(size=(steps, 14)).astype(np.float32)
            pictures = smooth_pictures(episode)
            if not compress:
                file.create_dataset(
                    "observations/images/cam_high", data=pictures, chunks=(1, 32, 40, 3)
                )
                continue
            file.attrs["compress"] = True
            # OpenCV's encoder takes the RGB arrays for BGR.
            encoded = [jpeg(np.ascontiguousarray(picture[..., ::-1])) for picture in pictures]
            sizes = [len(content) for content in encoded]
            padded = np.zeros((steps, max(sizes)), np.uint8)
            for row, content in zip(padded, encoded, strict=True):
                row[: len(content)] = np.frombuffer(content, np.uint8)
            file["observations/images/cam_high"] = padded
            file["compress_len"] = np.array([sizes], np.float32)
    return path


def write_d4rl_file(path: Path, ended: bool = True) -> Path:
    """Episodes of 4 and 6 steps that end by `terminals` and `timeouts`, and one of 3 steps."""
    arrays = [episode_arrays(episode) for episode in range(len(LENGTHS))]
    joined = {key: np.concatenate([part[key] for part in arrays]) for key in arrays[0]}
    total = sum(LENGTHS)
    terminals, timeouts = np.zeros(total, bool), np.zeros(total, bool)
    terminals[3] = True
    timeouts[9] = True
    terminals[12] = ended
    with h5py.File(path, "w") as file:
        file["observations"] = joined["state"].astype(np.float32)
        file["next_observations"] = joined["state"].astype(np.float32)
        file["actions"] = joined["actions"]
        file["rewards"] = joined["rewards"]
        file["terminals"] = terminals
        file["timeouts"] = timeouts
        file["infos/qpos"] = joined["state"]
        file["metadata/algorithm"] = "SAC"
    return path


def write_minari_folder(path: Path) -> Path:
    """A data set with a Dict observation space, JPEG pictures and infos."""
    box = {"type": "Box", "dtype": "float64", "shape": [5], "low": [-9.0] * 5, "high": [9.0] * 5}
    low = np.zeros((32, 40, 3), int)
    bounds = {"low": low.tolist(), "high": (low + 255).tolist()}
    image = {"type": "Box", "dtype": "uint8", "shape": [32, 40, 3], **bounds}
    text = {"type": "Text", "max_length": 40, "min_length": 0, "charset": "abc"}
    pair = {"type": "Tuple", "subspaces": [box, box]}
    space = {
        "type": "Dict",
        "subspaces": {"state": box, "image": image, "mission": text, "pair": pair},
    }
    (path / "data").mkdir(parents=True)
    with h5py.File(path / "data" / "main_data.hdf5", "w", track_order=True) as file:
        for episode, steps in enumerate(LENGTHS):
            arrays = episode_arrays(episode, extra=1)
            group = file.create_group(f"episode_{episode}")
            group.attrs.update({"id": episode, "total_steps": steps, "seed": 40 + episode})
            group["observations/state"] = arrays["state"]
            group["observations/pair/_index_0"] = arrays["state"]
            group["observations/pair/_index_1"] = arrays["state"] * 2
            words = ["open the drawer"] * (steps + 1)
            group.create_dataset("observations/mission", data=words, dtype=h5py.string_dtype())
            pictures = group.create_dataset(
                "observations/image", (steps + 1,), h5py.vlen_dtype(np.uint8)
            )
            for row, picture in enumerate(smooth_pictures(episode, extra=1)):
                pictures[row] = np.frombuffer(jpeg(picture), np.uint8)
            group["actions"] = arrays["actions"]
            group["rewards"] = arrays["rewards"].astype(np.float64)
            group["terminations"] = np.arange(steps) == steps - 1
            group["truncations"] = np.zeros(steps, bool)
            group["infos/success"] = np.append(np.zeros(steps, bool), episode == 1)
    metadata = {
        "dataset_id": "test/drawer-v0",
        "minari_version": "0.5.4",
        "data_format": "hdf5",
        "jpeg_encoding": True,
        "observation_space": json.dumps(space),
        "action_space": json.dumps(box),
        "total_episodes": len(LENGTHS),
        "total_steps": sum(LENGTHS),
    }
    (path / "data" / "metadata.json").write_text(json.dumps(metadata))
    return path
