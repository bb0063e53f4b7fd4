"""An ensemble of world models: its members, their disagreement, and what imagination charges."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from policies.world_model.config import ImaginationConfig, WorldModelSizes
from policies.world_model.ensemble import (
    MAX_MULTIPLES,
    WorldModelEnsemble,
    load_ensemble,
    penalties,
)
from policies.world_model.imagined_env import ImaginedVecEnv
from policies.world_model.model import WorldModel, load_world_model
from policies.world_model.train import train_world_model
from robots.errors import HandoffError
from robots.interfaces import no_progress
from tests.policies.toy_play import TOY

MEMBERS = 3
CONFIG = replace(TOY, members=MEMBERS)


@pytest.fixture(scope="module")
def three(toy_play: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Folder of an ensemble, and the metrics of its training."""
    folder = tmp_path_factory.mktemp("three")
    return folder, train_world_model(CONFIG, toy_play, folder, no_progress)


def untrained(members: int) -> WorldModelEnsemble:
    sizes = WorldModelSizes(recurrent=16, hidden=(16,), latents=4, classes=4)
    models = []
    for number in range(members):
        torch.manual_seed(number)
        model = WorldModel(3, 1, sizes)
        torch.nn.init.normal_(model.follow.weight)
        models.append(model.requires_grad_(False).eval())
    return WorldModelEnsemble(models)


def test_the_first_member_is_the_model_that_is_trained_alone(three, toy_model) -> None:
    (folder, metrics), (alone, _) = three, toy_model
    (first, _, _), (single, _, _) = load_world_model(folder), load_world_model(alone)
    for name, value in single.state_dict().items():
        assert torch.equal(first.state_dict()[name], value), name
    assert metrics["members"] == MEMBERS
    assert not list(folder.rglob("*.partial"))


def test_members_share_normalisation_and_differ_in_weights(three) -> None:
    loaded = load_ensemble(three[0])
    assert [card.members for card in loaded.cards] == [MEMBERS] * MEMBERS
    first, second = (one.state_dict() for one in loaded.models.members[:2])
    assert torch.equal(first["normalize_observation.scale"], second["normalize_observation.scale"])
    assert torch.equal(first["change"], second["change"])
    assert not torch.equal(first["decode.0.weight"], second["decode.0.weight"])


def test_disagreement_is_greater_where_nobody_played(three) -> None:
    """Negative control: states of play, about which the members agree."""
    loaded = load_ensemble(three[0])
    models, rng = loaded.models, np.random.default_rng(0)
    obs_BO = models.members[0].normalize_observation(loaded.starts)
    action_BA = torch.zeros(len(obs_BO), 1)
    noise = models.noise(rng, len(obs_BO))
    played, never = (
        models.spread(models.predictions(models.initial(place, noise), action_BA))
        for place in (obs_BO, obs_BO + 10.0)
    )
    assert float(never.mean()) > 3.0 * float(played.mean())


def test_what_is_usual_is_measured_on_held_out_play(three) -> None:
    folder, metrics = three
    found = metrics["disagreement"]
    assert load_ensemble(folder).cards[0].usual_disagreement == found["usual"] > 0.0
    assert -1.0 <= found["rank_correlation"] <= 1.0
    assert -1.0 <= found["rank_correlation_imagined"] <= 1.0


def test_the_leader_draws_and_the_others_observe() -> None:
    models, rng = untrained(2), np.random.default_rng(0)
    noise = models.noise(rng, 4)
    latents = models.initial(torch.randn(4, 3), noise)
    action, leader = torch.randn(4, 1), torch.tensor([0, 1, 1, 0])
    imagined = models.imagine(latents, action, noise, leader)
    for row, number in enumerate(leader):
        member = models.members[int(number)]
        own = latents[number].rows(torch.tensor([row]))
        expected = member.imagine(own, action[[row]], noise[[row], int(number)])
        torch.testing.assert_close(imagined[0].obs_BO[row], expected.obs_BO[0])
        torch.testing.assert_close(imagined[number].recurrent_BH[row], expected.recurrent_BH[0])
        other = models.members[1 - int(number)]
        observed = other.observe(
            latents[1 - number].rows(torch.tensor([row])),
            action[[row]],
            expected.obs_BO,
            noise[[row], 1 - int(number)],
        )
        torch.testing.assert_close(
            imagined[1 - number].stochastic_BZ[row], observed.stochastic_BZ[0]
        )
    assert (models.disagreement(latents, action) > 0.0).all()


def test_copies_of_one_model_agree() -> None:
    """Negative control of the disagreement."""
    member = untrained(1).members[0]
    models, rng = WorldModelEnsemble([member, member, member]), np.random.default_rng(0)
    noise = models.noise(rng, 5)
    latents = models.initial(torch.randn(5, 3), noise[:, :1].expand(5, 3, -1))
    assert float(models.disagreement(latents, torch.randn(5, 1)).abs().max()) < 1e-6


def test_usual_steps_cost_nothing_and_a_diverged_model_costs_a_limited_amount() -> None:
    found = penalties(np.array([0.0, 1.9, 2.0, 6.0, np.inf]), usual=2.0, weight=0.1)
    np.testing.assert_allclose(found, [0.0, 0.0, 0.0, 0.2, 0.1 * MAX_MULTIPLES])


def test_the_penalty_is_taken_from_the_reward_alone(three) -> None:
    folder = three[0]
    free = ImaginedVecEnv(folder, 6, 40)
    charged = ImaginedVecEnv(folder, 6, 40, ImaginationConfig(penalty=0.5))
    for envs in (free, charged):
        envs.reset(range(6))
    # Pushes of alternating sign far beyond play are clipped to it, so that some steps are unusual.
    costs = []
    for step in range(30):
        action = np.full((6, 1), 1.0 if step % 2 else -1.0)
        one, other = free.step(action), charged.step(action)
        np.testing.assert_array_equal(one.observation["point"], other.observation["point"])
        np.testing.assert_array_equal(one.terminated, other.terminated)
        costs.append(one.reward - other.reward)
    assert np.min(costs) >= 0.0
    assert np.max(costs) > 0.0


def test_an_imagined_rollout_of_an_ensemble_depends_on_its_seed_alone(three) -> None:
    together, alone = ImaginedVecEnv(three[0], 3, 50), ImaginedVecEnv(three[0], 1, 50)
    together.reset([4, 5, 6])
    alone.reset([5])
    for _ in range(6):
        many, one = together.step(np.full((3, 1), 0.7)), alone.step(np.full((1, 1), 0.7))
        np.testing.assert_allclose(
            many.observation["point"][1], one.observation["point"][0], rtol=1e-5, atol=1e-5
        )


def test_success_needs_the_classifiers_of_all_members(three, monkeypatch) -> None:
    envs = ImaginedVecEnv(three[0], 8, 50)
    monkeypatch.setattr(envs, "_thresholds", [*envs._thresholds[:-1], 2.0])
    envs.reset(range(8))
    steps = [envs.step(np.ones((8, 1))) for _ in range(25)]
    assert not steps[-1].terminated.any()


def test_a_single_model_cannot_disagree(toy_model) -> None:
    with pytest.raises(HandoffError, match="1 world models, which cannot disagree"):
        ImaginedVecEnv(toy_model[0], 1, 5, ImaginationConfig(penalty=0.1))


def test_an_ensemble_whose_member_is_missing_is_refused(three, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(three[0], tmp_path / "model")
    shutil.rmtree(tmp_path / "model" / "member_2")
    with pytest.raises(HandoffError, match=r"member_2.*no world_model\.json"):
        load_ensemble(tmp_path / "model")


def test_a_killed_training_does_not_train_finished_members_again(
    toy_play: Path, tmp_path: Path
) -> None:
    class KilledError(Exception):
        pass

    training = replace(TOY.training, steps=40, log_every=20, checkpoint_seconds=0.0)
    config = replace(
        CONFIG, training=training, success=replace(TOY.success, precision=0.05), members=2
    )
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder in (whole, cut):
        folder.mkdir()
    train_world_model(config, toy_play, whole, no_progress)
    reported: list[tuple[int, int, str]] = []

    def killing(done: int, total: int, note: str = "") -> None:
        if total == 80 and done == 70:
            raise KilledError

    with pytest.raises(KilledError):
        train_world_model(config, toy_play, cut, killing)
    train_world_model(
        config, toy_play, cut, lambda done, total, note="": reported.append((done, total, note))
    )
    updates = [done for done, total, _ in reported if total == 80]
    assert min(updates) >= 60
    # The note tells what is trained.
    classifier = [note for _, total, note in reported if total != 80]
    assert classifier
    assert all(note.startswith("success classifier") for note in classifier)
    assert all(note.endswith("member 2 of 2") for _, _, note in reported if note)
    for member in ("", "member_1"):
        one, other = (load_world_model(folder / member)[0].state_dict() for folder in (whole, cut))
        assert all(torch.equal(one[name], other[name]) for name in one)
