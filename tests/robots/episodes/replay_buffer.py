"""A three-episode data set in the layout of the published push-T demonstrations."""

import zipfile
from pathlib import Path

import numpy as np
from numcodecs import Blosc

ENDS = (4, 10, 13)


def arrays(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    frames = ENDS[-1]
    state = rng.uniform(20, 490, (frames, 5)).astype(np.float32)
    state[:, 4] = rng.uniform(0, 6.28, frames)
    return {
        "data/state": state,
        "data/keypoint": rng.uniform(0, 512, (frames, 9, 2)).astype(np.float32),
        "data/action": rng.uniform(0, 512, (frames, 2)).astype(np.float32),
        "data/img": rng.integers(0, 256, (frames, 96, 96, 3)).astype(np.float32),
        "data/n_contacts": np.zeros((frames, 1), np.float32),
        "meta/episode_ends": np.array(ENDS, np.int64),
    }


def write_folder(path: Path, values: dict[str, np.ndarray]) -> Path:
    import zarr

    group = zarr.create_group(path, zarr_format=2)
    for name, array in values.items():
        chunks = (min(5, max(1, len(array))), *array.shape[1:])
        stored = group.create_array(
            name,
            shape=array.shape,
            dtype=array.dtype,
            chunks=chunks,
            compressors=Blosc(cname="zstd", clevel=5, shuffle=2),
        )
        stored[...] = array
    return path


def write_zip(path: Path, values: dict[str, np.ndarray], prefix: str = "") -> Path:
    folder = write_folder(path.with_suffix(".folder"), values)
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                archive.write(file, prefix + file.relative_to(folder).as_posix())
    return path
