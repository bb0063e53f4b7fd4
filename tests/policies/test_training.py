from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from policies.config import TrainingConfig
from policies.training import ema_decay, learning_rate, resolve_device, resolve_precision, rng, train, without_data
from robots.errors import HandoffError
from robots.types import no_progress

CONFIG = TrainingConfig(steps=90, learning_rate=0.6, warmup_steps=3, log_every=10, checkpoint_seconds=0.0)


def test_the_learning_rate_warms_up_stays_and_falls_over_the_last_third():
    rates = [learning_rate(CONFIG, step) for step in (0, 1, 2, 30, 60, 75, 89)]
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.6, 0.6, 0.3, 0.02])


def test_the_average_starts_as_a_copy_and_grows_longer():
    assert ema_decay(0, 0.75, 0.9999) == 0.0
    assert ema_decay(15, 0.75, 0.9999) == pytest.approx(1 - 1 / 8)
    assert ema_decay(10**9, 0.75, 0.9999) == 0.9999


class Scalar(nn.Module):
    """One weight, fixed to a sequence of values by losses whose minimum AdamW jumps to."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))


def walk(model: Scalar, path: list[float]):
    """A loss with gradient 1, so that Adam moves the weight by the learning rate; records the weight."""

    def loss(step: int) -> Tensor:
        path.append(float(model.weight.detach()))
        return model.weight.sum()

    return loss


def test_the_average_of_the_weights_follows_the_formula(tmp_path: Path):
    model, path = Scalar(), []
    trained = train(CONFIG, model, without_data(walk(model, path)), "job", tmp_path, no_progress)
    path.append(float(model.weight.detach()))
    average = 0.0
    for step, weight in enumerate(path[1:]):
        decay = 1 - (1 + step) ** -0.75
        average = decay * average + (1 - decay) * weight
    assert trained.average["weight"].item() == pytest.approx(average, rel=1e-5)
    assert trained.average["weight"].item() != pytest.approx(path[-1], rel=1e-3)


def test_a_loss_that_is_not_finite_stops_and_names_the_updates(tmp_path: Path):
    model = Scalar()

    def loss(step: int) -> Tensor:
        return model.weight.sum() * (float("nan") if step == 33 else 1.0)

    with pytest.raises(HandoffError, match="loss is nan in the 10 updates before 40"):
        train(CONFIG, model, without_data(loss), "job", tmp_path, no_progress)


def test_weights_spoilt_by_such_a_loss_are_not_saved(tmp_path: Path):
    model = Scalar()

    def loss(step: int) -> Tensor:
        return model.weight.sum() * (float("nan") if step == 33 else 1.0)

    with pytest.raises(HandoffError):
        train(CONFIG, model, without_data(loss), "job", tmp_path, no_progress)
    saved = torch.load(tmp_path / "training.pt", weights_only=True)
    assert saved["step"] == 30
    assert torch.isfinite(saved["parameters"][0]).all()


def test_a_checkpoint_of_another_job_is_not_gone_on_with(tmp_path: Path):
    model, path = Scalar(), []
    train(replace(CONFIG, steps=20), model, without_data(walk(model, path)), "one job", tmp_path, no_progress)
    train(replace(CONFIG, steps=20), model, without_data(walk(model, path)), "another job", tmp_path, no_progress)
    assert len(path) == 40


def test_a_finished_training_is_not_repeated(tmp_path: Path):
    model, path = Scalar(), []
    for _ in range(2):
        train(replace(CONFIG, steps=20), model, without_data(walk(model, path)), "job", tmp_path, no_progress)
    assert len(path) == 20


def test_draws_are_told_apart_by_seed_and_number_only():
    first = rng(1, 2).standard_normal(4)
    assert (rng(1, 2).standard_normal(4) == first).all()
    assert (rng(2, 1).standard_normal(4) != first).all()


def test_cuda_that_is_absent_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto").type == "cpu"
    with pytest.raises(HandoffError, match="no CUDA device"):
        resolve_device("cuda")


@pytest.mark.parametrize(
    ("flags", "precision"),
    [({"avx512_bf16": True}, "bf16"), ({"amx_bf16": True}, "bf16"), ({"avx512_f": True}, "fp32"), ({}, "fp32")],
)
def test_auto_takes_bf16_only_where_the_processor_has_it(
    flags: dict[str, bool], precision: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: flags)
    assert resolve_precision("auto", torch.device("cpu")) == precision
    assert resolve_precision("fp32", torch.device("cpu")) == "fp32"
