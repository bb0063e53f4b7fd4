import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from policies.card import Shapes
from policies.checkpoint import save_policy
from policies.families.diffusion import DiffusionPolicy
from policies.load import load_module, load_policy
from policies.policy import Batch, ObservationTensors
from policies.policy_config import DiffusionPolicyConfig
from robots.errors import HandoffError
from tests.policies.conftest import TINY
from tests.policies.test_checkpoint import CARD


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained policy with weights large enough to matter, for actions -0.1 to 0.3 m away from
    the agent."""
    path = tmp_path_factory.mktemp("policy")
    torch.manual_seed(0)
    module = DiffusionPolicy(TINY, Shapes.of_vector(4, 2, anchor=2))
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    module.normalize_action.fit(np.stack([np.full((4, 2), -0.1), np.full((4, 2), 0.3)]))
    save_policy(path, CARD, module.state_dict())
    return path


def inputs(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.uniform(0, 0.5, (rows, 2, 4)).astype(np.float32), rng.standard_normal(
        (rows, 4, 2), dtype=np.float32
    )


def test_the_same_noise_gives_the_same_chunk(saved: Path):
    policy = load_policy(saved)
    assert np.array_equal(policy(*inputs(5)), policy(*inputs(5)))


def test_other_noise_gives_another_chunk(saved: Path):
    policy = load_policy(saved)
    observation, _ = inputs(5)
    assert (
        np.abs(policy(observation, inputs(5, 1)[1]) - policy(observation, inputs(5, 2)[1])).max()
        > 1e-3
    )


def test_rows_do_not_depend_on_their_batch(saved: Path):
    policy = load_policy(saved)
    observation, noise = inputs(64)
    alone = np.concatenate([policy(observation[i : i + 1], noise[i : i + 1]) for i in range(64)])
    assert np.abs(policy(observation, noise) - alone).max() / 0.2 <= 1e-5


def test_actions_are_clipped_around_the_newest_position_of_the_agent(saved: Path):
    observation, noise = inputs(200)
    away = load_policy(saved)(observation, noise) - observation[:, -1:, 2:]
    # Mean 0.1 m and deviation 0.2 m: normalised by 0.4 m.
    assert np.abs((away - 0.1) / 0.4).max() <= TINY.clip + 1e-5


def test_chunk_moves_along_with_the_agent_it_is_relative_to(saved: Path):
    module, _ = load_module(saved)
    observation, noise = (torch.from_numpy(part) for part in inputs(5))
    chunk = module.normalize_action.inverse(
        module.sample(ObservationTensors(module.normalize_observation(observation)), noise)
    )
    assert torch.allclose(module(observation, noise), chunk + observation[:, -1:, 2:], atol=1e-7)


def test_the_number_of_steps_can_be_overridden(saved: Path):
    own, same, one = (
        load_policy(saved, steps)(*inputs(5)) for steps in (None, TINY.inference_steps, 1)
    )
    assert np.array_equal(own, same)
    assert not np.allclose(own, one)


def test_steps_that_do_not_divide_the_schedule_are_refused(saved: Path):
    with pytest.raises(HandoffError, match="3 steps, expected a divisor"):
        load_policy(saved, 3)


@pytest.mark.parametrize(
    ("observation", "noise", "name"),
    [
        ((2, 4), (1, 4, 2), "observation"),
        ((1, 2, 3), (1, 4, 2), "observation"),
        ((2, 2, 4), (2, 3, 2), "noise"),
    ],
)
def test_a_wrong_shape_is_named(
    saved: Path, observation: tuple[int, ...], noise: tuple[int, ...], name: str
):
    with pytest.raises(HandoffError, match=f"{name} has shape"):
        load_policy(saved)(np.zeros(observation, np.float32), np.zeros(noise, np.float32))


def test_an_observation_that_is_not_finite_is_refused(saved: Path):
    observation, noise = inputs(2)
    observation[1, 0, 2] = np.nan
    with pytest.raises(HandoffError, match="observation holds a value that is not finite"):
        load_policy(saved)(observation, noise)


def test_a_missing_policy_is_named(tmp_path: Path):
    with pytest.raises(HandoffError, match="no policy is here"):
        load_policy(tmp_path / "nowhere")


def test_weights_of_another_size_are_named(saved: Path, tmp_path: Path):
    module = DiffusionPolicy(TINY, Shapes.of_vector(5, 2, anchor=2))
    save_policy(tmp_path, CARD, module.state_dict())
    with pytest.raises(HandoffError, match=r"weights and config\.json disagree"):
        load_policy(tmp_path)


def test_the_default_policy_starts_from_the_weights_it_always_had():
    # Of the demo's network on push-T, taken before there were others: the same seed must go on
    # giving the same demo.
    torch.manual_seed(0)
    module = DiffusionPolicy(DiffusionPolicyConfig(), Shapes.of_vector(20, 2, anchor=18))
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        digest.update(name.encode() + value.numpy().tobytes())
    assert digest.hexdigest() == "d4ca45651963a471070c4a31ba4c8d01b3151378aefe835c9c9ac8059e0c911a"


@pytest.mark.parametrize("objective", ["diffusion", "flow"])
def test_several_draws_are_those_of_as_many_equal_examples(objective: str):
    torch.manual_seed(0)
    config = replace(TINY, objective=objective)  # type: ignore[arg-type]
    shapes = Shapes.of_vector(4, 2, anchor=2)
    module = DiffusionPolicy(config, shapes).eval()
    several = DiffusionPolicy(replace(config, noise_draws=3), shapes).eval()
    several.load_state_dict(module.state_dict())
    vector, chunk = (torch.from_numpy(part) for part in inputs(5))

    def batch(times: int) -> Batch:
        seen = ObservationTensors(vector.repeat_interleave(times, dim=0))
        shown = chunk.repeat_interleave(times, dim=0)
        return Batch(seen, shown, torch.zeros(shown.shape[:2], dtype=torch.bool))

    expected = module.loss(batch(3), np.random.default_rng(0))
    loss = several.loss(batch(1), np.random.default_rng(0))
    assert torch.allclose(loss, expected, rtol=1e-6)
    assert not torch.allclose(loss, module.loss(batch(1), np.random.default_rng(0)), rtol=1e-3)
