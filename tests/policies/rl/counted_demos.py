"""Demonstrations in the counting environments."""

from pathlib import Path

import numpy as np

from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.spec import FieldSpec
from tests.policies.rl.counting import CAMERA, picture


def write_counted(
    folder: Path,
    episodes: int = 3,
    length: int = 5,
    *,
    reward: bool = True,
    unsolved: int = 0,
    camera: bool = False,
) -> Path:
    """Episodes whose step, action and reward count up; the last `unsolved` of them did not solve
    the task. A camera shows what it does in `SeeingCounting`."""
    one = FieldSpec(shape=(1,))
    fields = {"step": one, "seed": one, "action": one} | (
        {"reward": FieldSpec(shape=())} if reward else {}
    )
    fields |= {"camera": CAMERA} if camera else {}
    schema = EpisodeSchema(
        name="counting", streams={"policy": StreamSpec(rate_hz=10.0, fields=fields)}
    )
    folder.mkdir()
    with EpisodeStore.create(folder / "store.zarr", schema) as store, store.writer() as writer:
        for number in range(episodes):
            steps = np.arange(length, dtype=np.float32)
            columns = {"step": steps[:, None], "seed": np.full((length, 1), number, np.float32)}
            columns |= {"action": 0.1 * steps[:, None]} | (
                {"reward": steps + 1.0} if reward else {}
            )
            if camera:
                columns["camera"] = np.stack([picture(number, float(step)) for step in steps])
            writer.append({"policy": columns}, {"success": number < episodes - unsolved})
    return folder
