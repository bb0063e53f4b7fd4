"""`handoff evaluate --policy ws://..`: a served policy is evaluated as the saved one is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from flows.__main__ import main
from flows.evaluation.agents import make_agent
from flows.serve import open_policy
from policies.card import PolicyCard
from policies.checkpoint import save_policy
from policies.families.diffusion import DiffusionPolicy
from policies.networks.config import MlpConfig
from policies.policy_config import DiffusionPolicyConfig
from real.deploy.remote_policy import RemoteConfig, RemotePolicy
from robots.control.noise import chunk_noise
from robots.errors import HandoffError
from robots.interfaces import PolicyInput
from robots.spec import FieldSpec
from robots.wire.policy import TOKEN_VARIABLE
from sim.evaluation.protocol import Protocol, ScoreRule
from tests.policies.served import CONTRACT, TOKEN, served

PROTOCOL = Protocol(
    name="short",
    engine="gym",
    task="gym_pusht/PushT-v0",
    packages=("gym-pusht", "pymunk"),
    episodes=4,
    max_steps=12,
    score=ScoreRule(of="reward"),
)
SHORT = """
name: short
engine: gym
task: gym_pusht/PushT-v0
packages: [gym-pusht, pymunk]
episodes: 4
max_steps: 12
score: {of: reward, over: max}
"""


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A small untrained push-T policy."""
    network = MlpConfig(width=16, blocks=1, time_embedding=8)
    model = DiffusionPolicyConfig(train_timesteps=20, inference_steps=2, network=network)
    card = PolicyCard(
        task="push_t",
        rate_hz=10.0,
        observation={"keypoints": FieldSpec(shape=(9, 2)), "agent": FieldSpec(shape=(2,))},
        action=FieldSpec(shape=(2,), unit="m"),
        model=model,
    )
    torch.manual_seed(0)
    folder = tmp_path / "saved"
    folder.mkdir()
    save_policy(folder, card, DiffusionPolicy(model, card.shapes).state_dict())
    return folder


def test_a_served_policy_scores_as_the_saved_one(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    (tmp_path / "short.yaml").write_text(SHORT)
    out = tmp_path / "out"
    common = ("evaluate", str(tmp_path / "short.yaml"), "--out", str(out), "--videos", "0")
    with served(*open_policy(saved)) as server:
        assert main([*common, "--policy", str(saved), "--policy", server.uri]) == 0
        name = server.uri.split("//")[1].replace(":", "-")
    local, remote = (
        json.loads((out / each / "episodes.json").read_text()) for each in ("saved", name)
    )
    assert remote["execution"]["server"] == server.uri
    assert remote["execution"]["denoising_steps"] == 2
    ours, theirs = ([e["score"] for e in each["episodes"]] for each in (local, remote))
    # The server infers one row at a time, which changes the last bits.
    np.testing.assert_allclose(theirs, ours, atol=1e-5)
    assert max(ours) > 0.0


def test_a_server_without_token_or_that_serves_another_policy_meanwhile_is_refused(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, contract = open_policy(saved)
    with served(policy, contract) as server:
        monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
        with pytest.raises(HandoffError, match=r"no token\. Set HANDOFF_TOKEN"):
            make_agent(server.uri, PROTOCOL)
        monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
        entrant = make_agent(server.uri, PROTOCOL)
        load = entrant.load
    with served(policy, replace(contract, policy="another")) as server:
        config = replace(load.args[0], uri=server.uri)  # type: ignore[attr-defined]
        with pytest.raises(HandoffError, match="serves policy another"):
            load.func(config, *load.args[1:])  # type: ignore[attr-defined]


def test_an_instruction_for_a_policy_without_language_is_refused(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    with (
        served(*open_policy(saved)) as server,
        pytest.raises(HandoffError, match="not language-conditioned"),
    ):
        make_agent(server.uri, PROTOCOL, "push it")


def brightness(inputs: PolicyInput, noise: np.ndarray) -> np.ndarray:
    """A policy of a camera and an instruction: mean brightness, number of characters."""
    light = inputs.sensors["front"].astype(np.float32).mean(axis=(1, 2, 3, 4))
    words = np.array([len(text) for text in inputs.instructions], np.float32)
    return np.stack([light, words], axis=1)[:, None].repeat(noise.shape[1], axis=1)


def test_pictures_and_instructions_reach_the_server() -> None:
    camera = FieldSpec(shape=(4, 5, 3), dtype="uint8", unit="u8")
    contract = replace(CONTRACT, sensors={"front": camera}, instruction=True)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (2, 2, 4, 5, 3), dtype=np.uint8)
    inputs = PolicyInput(np.zeros((2, 2, 20), np.float32), {"front": images}, ("one", "three"))
    noise = np.stack([chunk_noise(seed, 0, 16, 2) for seed in range(2)])
    with served(brightness, contract) as server:
        config = RemoteConfig(uri=server.uri, connect_seconds=30.0, answer_seconds=30.0)
        with RemotePolicy(config, TOKEN) as policy:
            chunk = policy(inputs, noise)
            with pytest.raises(HandoffError, match=r"the observation lacks \['front'\]"):
                policy(inputs.vector, noise)
    np.testing.assert_allclose(chunk[:, 0, 1], [3.0, 5.0])
    np.testing.assert_allclose(chunk[:, 0, 0], images.mean(axis=(1, 2, 3, 4)), rtol=1e-6)
