"""The latent world model: its initial state, its predictions after training on play, and invalid
inputs."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, kl_divergence

from policies.world_model.config import WorldModelConfig, WorldModelSizes
from policies.world_model.held_out import imagine_held_out, open_loop
from policies.world_model.model import (
    CARD,
    WEIGHTS,
    WorldModel,
    categorical_divergence,
    load_world_model,
)
from policies.world_model.play import read_play
from policies.world_model.train import train_world_model
from robots.episodes.corrections import FINAL
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import no_progress
from robots.spec import FieldSpec
from tests.policies.toy_play import PUSH, TOY, write_play


def fresh() -> WorldModel:
    torch.manual_seed(0)
    return WorldModel(3, 1, WorldModelSizes(recurrent=16, hidden=(16,), latents=4, classes=4))


def test_before_it_has_learned_nothing_changes():
    model, draw = fresh(), torch.Generator().manual_seed(0)
    obs = torch.randn(5, 3, generator=draw)
    latent = model.initial_latent(obs, model.gumbel(5, draw))
    after = model.imagine(latent, torch.ones(5, 1), model.gumbel(5, draw))
    assert torch.equal(after.obs_BO, obs)
    assert not torch.equal(after.recurrent_BH, latent.recurrent_BH)


def test_draws_are_one_hot_and_pass_gradients_on():
    model, draw = fresh(), torch.Generator().manual_seed(0)
    latent = model.initial_latent(torch.randn(5, 3, generator=draw), model.gumbel(5, draw))
    hot = latent.stochastic_BZ.unflatten(1, (4, 4))
    torch.testing.assert_close(hot.sum(dim=-1), torch.ones(5, 4))
    assert set(hot.detach().round(decimals=5).unique().tolist()) == {0.0, 1.0}
    (hot[..., 0]).sum().backward()
    assert model.recognise[-1].weight.grad.abs().sum() > 0.0  # type: ignore[union-attr]


def test_draws_follow_their_probabilities():
    model, draw = fresh(), torch.Generator().manual_seed(0)
    obs = torch.randn(1, 3, generator=draw)
    log_probs = model._log_probs(
        model.recognise(torch.cat([torch.zeros(1, 16), obs, torch.zeros(1, 3)], dim=1))
    )
    many = model.initial_latent(obs.expand(20_000, 3), model.gumbel(20_000, draw)).stochastic_BZ
    torch.testing.assert_close(many.mean(dim=0), log_probs.exp().flatten(), atol=0.015, rtol=0.0)


def test_the_divergence_is_that_of_the_library():
    draw = torch.Generator().manual_seed(0)
    p, q = (torch.randn(6, 4, 5, generator=draw).log_softmax(dim=-1) for _ in range(2))
    expected = kl_divergence(Categorical(logits=p), Categorical(logits=q)).sum(dim=-1)
    torch.testing.assert_close(categorical_divergence(p, q), expected)
    assert float(categorical_divergence(p, p).abs().max()) == 0.0


def test_it_predicts_pushes_keeps_the_wall_and_learns_that_the_lamp_is_random(toy_model):
    _, metrics = toy_model
    assert metrics["errors"]["10"]["point"] < 0.8 * PUSH
    assert metrics["errors"]["10"]["wall"] < 0.02
    # Two draws of a fair coin of -1 and 1 are on average sqrt(2) apart, and a model that draws them
    # is no nearer.
    assert metrics["errors"]["10"]["lamp"] == pytest.approx(2.0**0.5, abs=0.3)
    assert metrics["error"]["1"] < metrics["stays"]["1"]


def test_without_its_actions_play_is_not_predicted(toy_model, toy_play: Path):
    """Negative control: the same model with zero actions."""
    folder, metrics = toy_model
    model, _, _ = load_world_model(folder)
    data = read_play(toy_play / "store.zarr", TOY)
    still = data._replace(action_MA=np.zeros_like(data.action_MA))
    report = open_loop(model, still, np.arange(4), (10,), 0)
    assert report["errors"]["10"]["point"] > 2.0 * metrics["errors"]["10"]["point"]


def test_success_is_classified_from_latents(toy_model):
    _, metrics = toy_model
    assert metrics["success"]["precision"] > 0.7
    assert metrics["success"]["recall"] > 0.5


def test_what_is_loaded_is_what_was_saved_and_frozen(toy_model, toy_play: Path):
    folder, _ = toy_model
    model, card, starts = load_world_model(folder)
    assert card.task == "toy"
    assert list(card.observation) == list(TOY.fields)
    assert starts.shape == (60, 3)
    assert not any(parameter.requires_grad for parameter in model.parameters())
    first, second = (imagine_held_out(folder, TOY, toy_play, 2, 15) for _ in range(2))
    assert [len(side["point"]) for pair in first.episodes for side in pair] == [15] * 4
    for one, other in zip(first.episodes, second.episodes, strict=True):
        np.testing.assert_array_equal(one[1]["lamp"], other[1]["lamp"])


def test_a_killed_training_comes_to_the_same_model(toy_play: Path, tmp_path: Path):
    class KilledError(Exception):
        pass

    def killing(done: int, total: int, note: str = "") -> None:
        if done == 50 and total == 60:
            raise KilledError

    training = replace(TOY.training, steps=60, log_every=20, checkpoint_seconds=0.0)
    config = replace(TOY, training=training, success=replace(TOY.success, precision=0.05))
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder in (whole, cut):
        folder.mkdir()
    train_world_model(config, toy_play, whole, no_progress)
    with pytest.raises(KilledError):
        train_world_model(config, toy_play, cut, killing)
    begun: list[int] = []

    def watching(done: int, total: int, note: str = "") -> None:
        begun.append(done)

    train_world_model(config, toy_play, cut, watching)
    assert begun[0] == 41
    expected, found = (load_world_model(folder)[0].state_dict() for folder in (whole, cut))
    for name, weight in expected.items():
        assert torch.equal(weight, found[name]), name


def test_a_damaged_or_missing_model_is_named(toy_model, tmp_path: Path):
    with pytest.raises(
        HandoffError, match=r"no world_model.json. Did the training of the world model finish"
    ):
        load_world_model(tmp_path)
    copy = tmp_path / "copy"
    shutil.copytree(toy_model[0], copy)
    (copy / WEIGHTS).write_bytes(b"cut short")
    with pytest.raises(HandoffError, match="damaged world model"):
        load_world_model(copy)
    (copy / CARD).write_text((copy / CARD).read_text().replace('"version": 1', '"version": 9'))
    shutil.copy(toy_model[0] / WEIGHTS, copy / WEIGHTS)
    with pytest.raises(HandoffError, match="version 9, this build reads 1"):
        load_world_model(copy)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (replace(TOY, fields=("point", "door")), r"\['door'\] of fields"),
        (replace(TOY, scaled_features=(("door", 0.1),)), "scaled feature 'door' with scale 0.1"),
        (replace(TOY, scaled_features=(("wall", 0.0),)), "scaled feature 'wall' with scale 0.0"),
        (replace(TOY, fields=()), r"world model: fields \[\]"),
        (replace(TOY, sequence=41), "the shortest of 40 steps"),
        (replace(TOY, held_out=1.0), "60 episodes of which 60 are held out"),
        (
            replace(TOY, horizons=(1, 100)),
            "longer than the longest horizon of 100 steps, the longest has 40",
        ),
        (
            replace(TOY, success=replace(TOY.success, precision=0.9999)),
            "a precision of 0.9999 can be estimated from at least 10000",
        ),
        (
            replace(TOY, success=replace(TOY.success, choice_fraction=0.001)),
            r"too few for training, for choosing the threshold \(0\)",
        ),
    ],
)
def test_play_that_will_not_do_is_refused_before_anything_is_trained(
    config: WorldModelConfig, message: str, toy_play: Path, tmp_path: Path
):
    def progress(done: int, total: int, note: str = "") -> None:
        raise AssertionError("a model was trained")

    with pytest.raises(HandoffError, match=message):
        train_world_model(config, toy_play, tmp_path, progress)


def test_play_without_a_label_of_success_is_refused(tmp_path: Path):
    with pytest.raises(HandoffError, match=r"\['success'\] of fields"):
        read_play(write_play(tmp_path, 3, labelled=False) / "store.zarr", TOY)


def test_an_episode_that_ends_with_success_shows_the_state_after_its_last_action(tmp_path: Path):
    fields = {name: FieldSpec(shape=(1,)) for name in ("point", "action")}
    spec = {
        "policy": StreamSpec(
            rate_hz=10.0, fields={**fields, "success": FieldSpec(shape=(), dtype="uint8")}
        ),
        FINAL: StreamSpec(rate_hz=10.0, fields={"point": fields["point"]}),
    }
    schema = EpisodeSchema(name="toy", streams=spec)
    with EpisodeStore.create(tmp_path / "store.zarr", schema) as store, store.writer() as writer:
        for first, steps in ((0.0, 3), (10.0, 2)):
            point = first + np.arange(steps + 1.0)[:, None]
            solved = np.arange(steps) == steps - 1
            rows = {
                "point": point[:-1],
                "action": point[:-1] / 100.0,
                "success": solved.astype(np.uint8),
            }
            writer.append({"policy": rows, FINAL: {"point": point[-1:]}}, {})
    play = read_play(tmp_path / "store.zarr", replace(TOY, fields=("point",), sequence=2))
    np.testing.assert_array_equal(play.obs_MO[:, 0], [0, 1, 2, 3, 10, 11, 12])
    np.testing.assert_array_equal(play.ends_E, [4, 7])
    np.testing.assert_allclose(play.action_MA[[2, 3, 5, 6], 0], [0.02, 0.02, 0.11, 0.11])
    # The label of an action is that of the state after it, which only an added step shows.
    labelled = np.setdiff1d(np.arange(7), play.ends_E - 1)
    np.testing.assert_array_equal(play.success_M[labelled], [0, 0, 1, 0, 1])


def test_horizons_that_cannot_be_evaluated_are_refused_before_the_training(
    toy_play: Path, tmp_path: Path
):
    def never(done: int, total: int, note: str = "") -> None:
        pytest.fail("trained")

    with pytest.raises(HandoffError, match=r"the longest has 40\. Set horizons .* such as \[1\]"):
        train_world_model(replace(TOY, horizons=(1, 40)), toy_play, tmp_path, never)
