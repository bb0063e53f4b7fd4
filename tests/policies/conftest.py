"""Small demonstrations: a point that moves to a goal, with four observation entries and two action
entries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.sync.connection import Connection

from policies.networks.config import MlpConfig
from policies.policy_config import DiffusionPolicyConfig
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.interfaces import no_progress
from robots.spec import FieldSpec
from tests.policies.served import Served, served
from tests.policies.toy_play import TOY, write_play

TINY = DiffusionPolicyConfig(
    observation_fields=("goal", "agent"),
    n_obs_steps=2,
    horizon=4,
    n_action_steps=2,
    train_timesteps=20,
    inference_steps=4,
    network=MlpConfig(width=16, blocks=1, time_embedding=8),
)

_POINT = FieldSpec(shape=(2,), unit="m", frame="board")


def write_demonstrations(
    demos: Path, actions: Sequence[np.ndarray], goal: np.ndarray | None = None
) -> Path:
    """A store in the directory `demos` whose agents follow `actions`, one (T, 2) array per episode,
    one step behind."""
    demos.mkdir(parents=True, exist_ok=True)
    schema = EpisodeSchema(
        name="point",
        streams={
            "policy": StreamSpec(
                rate_hz=10.0, fields={"goal": _POINT, "agent": _POINT, "action": _POINT}
            )
        },
    )
    with EpisodeStore.create(demos / "store.zarr", schema) as store, store.writer() as writer:
        for action in actions:
            agent = np.concatenate([np.zeros((1, 2)), action[:-1]])
            goals = np.broadcast_to(action[-1] if goal is None else goal, action.shape)
            writer.append({"policy": {"goal": goals, "agent": agent, "action": action}}, {})
    return demos


@pytest.fixture(scope="session")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve straight reaches of ten to twenty-one steps."""
    rng = np.random.default_rng(0)
    lengths = range(10, 22)
    actions = [
        rng.uniform(0.1, 0.4, 2) * np.linspace(0.1, 1.0, length)[:, None] for length in lengths
    ]
    return write_demonstrations(tmp_path_factory.mktemp("demos"), actions)


@pytest.fixture(scope="session")
def toy_play(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Play in the toy environment."""
    return write_play(tmp_path_factory.mktemp("toy_play"))


@pytest.fixture(scope="session")
def toy_model(
    toy_play: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    """Folder of a world model of it, and the metrics of its training."""
    from policies.world_model.train import train_world_model

    folder = tmp_path_factory.mktemp("toy_model")
    return folder, train_world_model(TOY, toy_play, folder, no_progress)


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    """A server of a policy that depends on every input."""
    with served() as running:
        yield running


@pytest.fixture
def client(server: Served) -> Iterator[Connection]:
    """A connection to it that has read the metadata."""
    with server.client() as connection:
        yield connection
