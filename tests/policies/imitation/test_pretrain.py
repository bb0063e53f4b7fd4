import json
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from policies.checkpoint import read_card, read_weights
from policies.data.demonstrations import read_demonstrations
from policies.imitation.config import PretrainConfig
from policies.imitation.pretrain import pretrain
from policies.load import load_policy
from policies.networks.config import NetworkConfig, TransformerConfig, UnetConfig
from policies.training.config import TrainingConfig
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import no_progress
from tests.policies.conftest import TINY, write_demonstrations
from tests.policies.kill import run_until_killed

TRAINING = TrainingConfig(
    steps=60,
    learning_rate=1e-2,
    batch_size=16,
    warmup_steps=5,
    log_every=10,
    checkpoint_seconds=0.0,
    precision="fp32",
)
CONFIG = PretrainConfig(policy=TINY, training=TRAINING, validation_fraction=0.1)


@pytest.fixture(scope="module")
def finished(demos: Path, tmp_path_factory: pytest.TempPathFactory):
    """A training that was never interrupted, and its metrics."""
    out = tmp_path_factory.mktemp("finished")
    return out, pretrain(CONFIG, demos, out, no_progress)


def read_curve(out: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (out / "loss.jsonl").read_text().splitlines()]


def assert_same_weights(one: Path, other: Path) -> None:
    weights, others = read_weights(one), read_weights(other)
    assert weights.keys() == others.keys()
    assert all(np.array_equal(weights[name].numpy(), others[name].numpy()) for name in weights)


class Resumed(NamedTuple):
    """A training that was killed at update 37 and resumed."""

    out: Path
    left: set[str]
    updates: list[int]
    cpu_seconds: float


@pytest.fixture(scope="module")
def resumed(demos: Path, tmp_path_factory: pytest.TempPathFactory) -> Resumed:
    out = tmp_path_factory.mktemp("resumed")
    run_until_killed(37, pretrain, CONFIG, demos, out)
    left, updates = {path.name for path in out.iterdir()}, []
    metrics = pretrain(CONFIG, demos, out, lambda done, total, note="": updates.append(done))
    return Resumed(out, left, updates, metrics["cpu_seconds"])


def test_a_killed_training_leaves_a_checkpoint_and_no_policy(resumed: Resumed):
    assert "training.pt" in resumed.left
    assert not resumed.left & {"config.json", "policy.safetensors"}


def test_it_resumes_from_its_last_checkpoint(resumed: Resumed):
    assert resumed.updates == list(range(31, 61))


def test_it_ends_with_the_very_weights_it_would_have_had(finished, resumed: Resumed):
    assert_same_weights(resumed.out, finished[0])


def test_its_loss_curve_has_no_gap_and_no_repetition(finished, resumed: Resumed):
    curves = [read_curve(out) for out in (resumed.out, finished[0])]
    steps_and_losses = [[(entry["step"], entry["loss"]) for entry in curve] for curve in curves]
    assert [step for step, _ in steps_and_losses[0]] == [10, 20, 30, 40, 50, 60]
    assert steps_and_losses[0] == steps_and_losses[1]


def test_its_processor_time_counts_both_attempts(resumed: Resumed):
    killed_after = read_curve(resumed.out)[2]["cpu_seconds"]
    assert resumed.cpu_seconds > killed_after > 0


def test_a_changed_configuration_starts_afresh(demos: Path, tmp_path: Path):
    class StopError(Exception):
        pass

    def stop(done: int, total: int, note: str = "") -> None:
        if done == 37:
            raise StopError

    with pytest.raises(StopError):
        pretrain(CONFIG, demos, tmp_path, stop)
    updates = []
    changed = replace(CONFIG, training=replace(TRAINING, learning_rate=2e-2))
    pretrain(changed, demos, tmp_path, lambda done, total, note="": updates.append(done))
    assert updates[0] == 1


def test_the_loss_falls(finished):
    out, metrics = finished
    curve = [entry["loss"] for entry in read_curve(out)]
    assert metrics["loss"] == curve[-1] < 0.7 * curve[0]


def test_metrics_say_what_was_done(finished):
    _, metrics = finished
    assert metrics["steps"] == 60
    assert metrics["precision"] == "fp32"
    assert metrics["validation_loss"] > 0
    assert metrics["windows"] < sum(range(10, 22)) - 12
    assert metrics["windows_per_store"] == {"demos": metrics["windows"]}


def test_only_the_policy_and_its_curve_are_left(finished):
    names = {path.name for path in finished[0].iterdir()}
    assert names == {"config.json", "policy.safetensors", "loss.jsonl", "loss.png", "samples.png"}


def test_the_card_says_what_the_policy_expects(finished):
    card = read_card(finished[0])
    assert (card.task, card.rate_hz, list(card.observation)) == ("point", 10.0, ["goal", "agent"])


def test_another_seed_gives_other_weights(finished, demos: Path, tmp_path: Path):
    pretrain(replace(CONFIG, training=replace(TRAINING, seed=1)), demos, tmp_path, no_progress)
    with pytest.raises(AssertionError):
        assert_same_weights(tmp_path, finished[0])


def test_no_held_out_episode_means_no_validation_loss(demos: Path, tmp_path: Path):
    config = replace(CONFIG, validation_fraction=0.0, training=replace(TRAINING, steps=10))
    assert pretrain(config, demos, tmp_path, no_progress)["validation_loss"] is None


def test_demonstrations_are_read_in_the_order_of_the_fields(tmp_path: Path):
    action = np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    write_demonstrations(tmp_path, [action], goal=np.array([7.0, 8.0]))
    data = read_demonstrations(tmp_path, TINY)
    assert data.observation_MO[1].tolist() == pytest.approx([7.0, 8.0, 0.1, 0.2])
    assert data.ends_E.tolist() == [3]


def test_a_field_that_is_not_there_is_named(demos: Path, tmp_path: Path):
    config = replace(CONFIG, policy=replace(TINY, observation_fields=("gaol",)))
    with pytest.raises(
        HandoffError, match=r"no field 'gaol'; it has \['action', 'agent', 'goal'\]"
    ):
        pretrain(config, demos, tmp_path, no_progress)


def test_data_that_are_not_finite_are_refused(
    demos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    read = EpisodeStore.read

    def damaged(
        store: EpisodeStore, episode: int, stream: str, fields: list[str]
    ) -> dict[str, np.ndarray]:
        values = read(store, episode, stream, fields)
        if episode == 3:
            values["agent"][5, 1] = np.nan
        return values

    monkeypatch.setattr(EpisodeStore, "read", damaged)
    with pytest.raises(HandoffError, match="episode 3: field 'agent' is not finite at step 5"):
        pretrain(CONFIG, demos, tmp_path, no_progress)


def test_absent_demonstrations_are_refused(tmp_path: Path):
    with pytest.raises(HandoffError):
        pretrain(CONFIG, tmp_path / "nowhere", tmp_path, no_progress)


def test_an_empty_store_is_refused(tmp_path: Path):
    write_demonstrations(tmp_path, [])
    with pytest.raises(HandoffError, match="0 episodes"):
        pretrain(CONFIG, tmp_path, tmp_path, no_progress)


def test_of_the_policies_kept_on_the_way_the_last_is_the_result(demos: Path, tmp_path: Path):
    pretrain(replace(CONFIG, keep_every=20), demos, tmp_path, no_progress)
    assert sorted(folder.name for folder in tmp_path.glob("step-*")) == [
        "step-20",
        "step-40",
        "step-60",
    ]
    assert_same_weights(tmp_path / "step-60", tmp_path)
    early, late = read_weights(tmp_path / "step-20"), read_weights(tmp_path / "step-60")
    assert early.keys() == late.keys()
    assert any(not np.array_equal(early[name].numpy(), late[name].numpy()) for name in early)


UNET = UnetConfig(widths=(8, 16), kernel=3, groups=4, time_embedding=8)
TRANSFORMER = TransformerConfig(layers=1, heads=2, width=16, dropout=0.2)


@pytest.mark.parametrize("network", [UNET, TRANSFORMER], ids=["unet", "transformer"])
def test_other_networks_learn_and_act(network: NetworkConfig, demos: Path, tmp_path: Path):
    config = replace(
        CONFIG, policy=replace(TINY, network=network), training=replace(TRAINING, steps=250)
    )
    metrics = pretrain(config, demos, tmp_path, no_progress)
    assert metrics["loss"] < 0.7 * read_curve(tmp_path)[0]["loss"]
    assert read_card(tmp_path).model == config.policy
    chunk = load_policy(tmp_path)(np.zeros((3, 2, 4), np.float32), np.zeros((3, 4, 2), np.float32))
    assert chunk.shape == (3, 4, 2)
    assert np.isfinite(chunk).all()


def test_dropout_too_is_the_same_after_an_interruption(demos: Path, tmp_path: Path):
    class StopError(Exception):
        pass

    def stop(done: int, total: int, note: str = "") -> None:
        if done == 37:
            raise StopError

    config = replace(CONFIG, policy=replace(TINY, network=TRANSFORMER))
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for out in (whole, parts):
        out.mkdir()
    with pytest.raises(StopError):
        pretrain(config, demos, parts, stop)
    torch.randn(5)
    for out in (whole, parts):
        pretrain(config, demos, out, no_progress)
    assert_same_weights(whole, parts)
