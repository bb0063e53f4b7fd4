"""PPO of policies with a sentence encoder: the instruction is observed beside what the encoders
made of the pictures, and the projections that it goes through are trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from policies.card import PolicyCard, Shapes
from policies.checkpoint import read_weights, save_policy
from policies.data.visited_states import load_visited_instructions, load_visited_states
from policies.distillation.config import DistilConfig
from policies.distillation.one_step import distil
from policies.families.diffusion import DiffusionPolicy
from policies.language.config import SentenceEncoderConfig
from policies.load import load_module, new_module
from policies.networks.config import (
    ImageEncoderConfig,
    MlpConfig,
    ResnetEncoderConfig,
)
from policies.policy import ObservationTensors
from policies.policy_config import DiffusionPolicyConfig
from policies.rl.collection.chunk_env import ChunkEnv
from policies.rl.finetuning.config import FinetuneMethodConfig
from policies.rl.finetuning.denoising.dppo import DppoFinetuning
from policies.rl.finetuning.finetune import finetune
from policies.rl.on_policy.config import DppoConfig
from policies.rl.on_policy.diffusion_actor import DenoisingActor
from policies.rl.on_policy.observations import VECTOR
from policies.training.config import TrainingConfig
from robots.errors import HandoffError
from robots.interfaces import Observation, no_progress
from robots.language.text import INSTRUCTION, encode, text_field
from robots.spec import FieldSpec
from tests.policies.rl.counted_demos import write_counted
from tests.policies.rl.counting import CAMERA, Counting, SeeingCounting
from tests.policies.rl.finetuning.denoising.flow_actors import FPO, REINFLOW
from tests.policies.rl.finetuning.test_demonstration_selection import EXPO
from tests.policies.rl.finetuning.test_finetune import (
    BEST_OF_N,
    DPPO,
    SMALL,
    KilledError,
    killing,
)
from tests.policies.sentence_fixture import write_encoder

SENTENCES = ("go to the red marker", "go to the blue marker")
TEXT = text_field(about="where to go, in words")
ONE = FieldSpec(shape=(1,))


def instructions(rows: int) -> np.ndarray:
    return encode([SENTENCES[row % 2] for row in range(rows)], TEXT.shape[0])


class Asked(Counting):
    """Counting environments with an instruction: every second one has the other sentence."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.observation_spec: Mapping[str, FieldSpec] = {
            **self.observation_spec,
            INSTRUCTION: TEXT,
        }

    def _obs(self) -> Observation:
        return {**super()._obs(), INSTRUCTION: instructions(self.num_envs)}


class SeeingAsked(SeeingCounting, Asked):
    """The same with a camera."""


def small_policy(
    encoder: Path, cameras: Mapping[str, FieldSpec], image_encoder: ImageEncoderConfig
) -> DiffusionPolicy:
    torch.manual_seed(0)
    config = DiffusionPolicyConfig(
        objective="flow",
        anchor_field=None,
        observation_fields=("step", "seed"),
        image_fields=tuple(cameras),
        image_encoder=image_encoder,
        horizon=4,
        n_action_steps=2,
        train_timesteps=10,
        inference_steps=5,
        network=MlpConfig(width=16, blocks=1),
        language=SentenceEncoderConfig(folder=str(encoder), features=5, max_tokens=16),
    )
    shapes = Shapes(
        {"step": (0, 1), "seed": (1, 2)},
        1,
        None,
        {name: one.shape for name, one in cameras.items()},
    )
    module = new_module(config, shapes).eval()
    assert isinstance(module, DiffusionPolicy)
    return module


@pytest.fixture(params=[False, True], ids=["vector", "pictures"])
def policy(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    cameras = {"camera": CAMERA} if request.param else {}
    image_encoder = ResnetEncoderConfig(channels=(16,), keypoints=4, features=6)
    module = small_policy(write_encoder(tmp_path / "encoder"), cameras, image_encoder)
    card = PolicyCard(
        task="counting",
        rate_hz=10.0,
        observation={"step": ONE, "seed": ONE},
        sensors=cameras,
        action=ONE,
        model=module.config,
    )
    folder = tmp_path / "policy"
    folder.mkdir()
    save_policy(folder, card, module.state_dict(), module.extra_files())
    return folder


def environments(policy: Path) -> Counting:
    cameras = load_module(policy)[1].sensors
    return SeeingAsked(3) if cameras else Asked(3)


def loaded(policy: Path) -> DiffusionPolicy:
    module, _ = load_module(policy)
    assert isinstance(module, DiffusionPolicy)
    return module


def test_an_observation_has_the_encoded_vector_and_the_instruction(policy: Path) -> None:
    module = loaded(policy)
    env = ChunkEnv(environments(policy), module, 2, iter(range(5, 100)), 0.9)
    for _ in range(5):
        observation = env.observation()
        assert set(observation.keys()) == {VECTOR, INSTRUCTION}
        assert observation[VECTOR].shape == (3, *module.encoded_shape)
        np.testing.assert_array_equal(observation[INSTRUCTION].numpy(), instructions(3))
        env.step(torch.zeros(3, *module.chunk_shape))


def test_the_instruction_changes_decision_and_value(policy: Path) -> None:
    module = loaded(policy)
    env = ChunkEnv(environments(policy), module, 2, iter(range(5, 100)), 0.9)
    observation = env.observation()
    other = observation.clone()
    other[INSTRUCTION] = torch.from_numpy(instructions(4)[1:])
    actor = DenoisingActor(module, DppoConfig(steps=5))
    chosen = [actor.decide(each, torch.Generator().manual_seed(0)) for each in (observation, other)]
    assert not torch.equal(chosen[0].chunk_BHA, chosen[1].chunk_BHA)
    step, trace = torch.zeros(3, dtype=torch.long), {k: v[:, 0] for k, v in chosen[0].trace.items()}
    log_prob = actor.log_prob(observation, step, trace)
    torch.testing.assert_close(log_prob.detach(), chosen[0].log_prob_BK[:, 0])
    assert not torch.allclose(log_prob, actor.log_prob(other, step, trace))
    critic = DppoFinetuning(DPPO, module, env, 0).critic
    assert not torch.allclose(critic(observation), critic(other))


@pytest.mark.parametrize(
    "algorithm", [DPPO, FPO, replace(REINFLOW, steps=5)], ids=["dppo", "fpo", "reinflow"]
)
def test_projections_of_the_instruction_learn_and_encoders_of_pictures_stay(
    algorithm: FinetuneMethodConfig, policy: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    config = replace(SMALL, algorithm=algorithm)
    finetune(config, policy, lambda: environments(policy), out, no_progress)
    before, after = read_weights(policy), read_weights(out)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert any(name.startswith("denoiser.") for name in moved)
    instructed = {name for name in moved if name.startswith("encoder.")}
    assert instructed == {
        name for name in before if name.startswith(("encoder.language.", "encoder.modulated."))
    }
    # The policy that is saved has its sentence encoder, and its states have the encoded vectors.
    module = loaded(out)
    visited = load_visited_states(out, module.encoded_shape)
    assert visited is not None
    assert len(visited) == 4 * 6 * 3
    assert load_visited_instructions(out) == tuple(SENTENCES[row % 3 % 2] for row in range(72))
    vector = torch.zeros(2, *module.observation_shape)
    sensors = {
        name: torch.zeros(2, 1, *shape, dtype=torch.uint8)
        for name, shape in module.shapes.sensors.items()
    }
    noise = torch.zeros(2, *module.chunk_shape)
    sampled = module.sample(ObservationTensors(vector, sensors, SENTENCES), noise)
    assert not torch.equal(sampled[0], sampled[1])


def test_a_student_learns_from_the_visited_states_with_their_instructions(
    policy: Path, tmp_path: Path
) -> None:
    teacher, student = tmp_path / "teacher", tmp_path / "student"
    for folder in (teacher, student):
        folder.mkdir()
    finetune(SMALL, policy, lambda: environments(policy), teacher, no_progress)
    cameras = load_module(policy)[1].sensors
    demos = write_counted(tmp_path / "demos", camera=bool(cameras))
    training = TrainingConfig(
        steps=4, learning_rate=1e-3, batch_size=4, warmup_steps=1, log_every=2
    )
    config = DistilConfig(targets=16, training=training)
    metrics = distil(config, teacher, demos, student, no_progress)
    assert metrics["practised"] == 4 * 6 * 3
    assert loaded(student).sampler_steps == 1


def test_a_killed_run_goes_on(policy: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(KilledError):
        finetune(SMALL, policy, lambda: environments(policy), out, killing(2))
    finetune(SMALL, policy, lambda: environments(policy), out, no_progress)
    visited = load_visited_states(out, loaded(out).encoded_shape)
    assert visited is not None
    assert len(visited) == 4 * 6 * 3


@pytest.mark.parametrize("algorithm", [BEST_OF_N, EXPO], ids=["best_of_n", "expo"])
def test_other_methods_name_the_one_that_observes_instructions(
    algorithm: object, policy: Path, tmp_path: Path
) -> None:
    config = replace(SMALL, algorithm=algorithm)
    with pytest.raises(HandoffError, match="Only 'dppo', 'fpo', 'reinflow', 'dsrl' and 'rl_token'"):
        finetune(config, policy, lambda: environments(policy), tmp_path / "out", no_progress)
