import json
import os
import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from policies.training.config import TrainingConfig
from policies.training.loop import resolve_device, resolve_precision, rng, train, without_data
from policies.training.optimizer import decayed_parameters, ema_decay, learning_rate, new_optimizer
from robots.errors import HandoffError
from robots.interfaces import no_progress
from robots.signals import raising_signals

CONFIG = TrainingConfig(
    steps=90, learning_rate=0.6, warmup_steps=3, log_every=10, checkpoint_seconds=0.0
)


def test_the_learning_rate_warms_up_stays_and_falls_over_the_last_third():
    rates = [learning_rate(CONFIG, step) for step in (0, 1, 2, 30, 60, 75, 89)]
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.6, 0.6, 0.3, 0.02])


@pytest.mark.parametrize("warmup", [0, 7])
def test_the_cosine_is_that_of_diffusers(warmup: int):
    from diffusers.optimization import get_cosine_schedule_with_warmup

    config = replace(CONFIG, schedule="cosine", warmup_steps=warmup)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=config.learning_rate)
    schedule = get_cosine_schedule_with_warmup(optimizer, warmup, config.steps)
    for step in range(config.steps):
        assert learning_rate(config, step) == pytest.approx(schedule.get_last_lr()[0], abs=1e-15)
        optimizer.step()
        schedule.step()


def test_the_cosine_starts_and_ends_at_zero():
    config = replace(CONFIG, schedule="cosine", warmup_steps=10, steps=30)
    assert [learning_rate(config, step) for step in (0, 5, 10, 20, 30)] == pytest.approx(
        [0.0, 0.3, 0.6, 0.3, 0.0]
    )


class Mixed(nn.Module):
    """A parameter of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(3, 4)
        self.position_HW = nn.Parameter(torch.zeros(2, 4))
        self.attention = nn.MultiheadAttention(4, 1)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 1)
        self.frozen = nn.Linear(4, 1).requires_grad_(False)


def test_only_matrices_decay_when_asked_for():
    model = Mixed()
    assert list(decayed_parameters(model)) == [
        "attention.in_proj_weight",
        "attention.out_proj.weight",
        "head.weight",
    ]
    matrices, spared = new_optimizer(
        replace(CONFIG, decay="matrices", weight_decay=0.1), model
    ).param_groups
    assert (len(matrices["params"]), matrices["weight_decay"]) == (3, 0.1)
    assert (len(spared["params"]), spared["weight_decay"]) == (7, 0.0)


def test_all_decay_by_default():
    (group,) = new_optimizer(
        replace(CONFIG, weight_decay=0.1, betas=(0.95, 0.999)), Mixed()
    ).param_groups
    assert (len(group["params"]), group["weight_decay"], group["betas"]) == (10, 0.1, (0.95, 0.999))


def test_gradients_are_scaled_down_to_the_bound(tmp_path: Path):
    # Gradient (3, 4), norm 5.
    model = nn.ParameterDict({"a": torch.zeros(1), "b": torch.zeros(1)})
    loss = without_data(lambda step: (3.0 * model["a"] + 4.0 * model["b"]).sum())
    config = replace(CONFIG, steps=10, max_grad_norm=1.0)
    train(config, model, loss, "job", tmp_path, no_progress)
    assert [float(model[name].grad) for name in ("a", "b")] == pytest.approx([0.6, 0.8])  # type: ignore[arg-type]
    assert json.loads((tmp_path / "loss.jsonl").read_text())["gradient_norm"] == pytest.approx(5.0)


def test_gradients_are_left_by_default(tmp_path: Path):
    model = Scalar()
    train(
        replace(CONFIG, steps=10),
        model,
        without_data(lambda step: 50.0 * model.weight.sum()),
        "job",
        tmp_path,
        no_progress,
    )
    assert float(model.weight.grad) == 50.0  # type: ignore[arg-type]


def test_a_training_with_groups_and_a_cosine_resumes_bit_for_bit(tmp_path: Path):
    config = replace(
        CONFIG,
        learning_rate=0.01,
        schedule="cosine",
        decay="matrices",
        weight_decay=0.1,
        max_grad_norm=0.1,
    )

    def learn(out: Path, stop_at: int) -> Tensor:
        torch.manual_seed(0)
        model = Mixed()
        out.mkdir(exist_ok=True)

        def loss(step: int) -> Tensor:
            rows = (
                model.norm(model.words(torch.tensor([0, 1])) + model.position_HW)
                + rng(0, step).standard_normal()
            )
            return model.head(model.attention(rows, rows, rows)[0]).square().sum()

        def progress(done: int, total: int, note: str = "") -> None:
            if done == stop_at:
                raise KeyboardInterrupt

        train(config, model, without_data(loss), "job", out, progress)
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    with pytest.raises(KeyboardInterrupt):
        learn(tmp_path / "resumed", 37)
    assert torch.equal(learn(tmp_path / "resumed", -1), learn(tmp_path / "whole", -1))


def test_a_training_that_a_signal_ends_saves_its_last_update_and_goes_on_behind_it(
    tmp_path: Path,
) -> None:
    def learn(out: Path, stop_at: int) -> tuple[list[int], Tensor, list[float]]:
        torch.manual_seed(0)
        model = Scalar()
        out.mkdir(exist_ok=True)
        steps: list[int] = []

        def loss(step: int) -> Tensor:
            steps.append(step)
            if step == stop_at:
                os.kill(os.getpid(), signal.SIGTERM)
            return (model.weight - rng(0, step).standard_normal()).square().sum()

        with suppress(KeyboardInterrupt), raising_signals():
            train(CONFIG, model, without_data(loss), "job", out, no_progress)
        curve = [json.loads(line) for line in (out / "loss.jsonl").read_text().splitlines()]
        return steps, model.weight.detach().clone(), [entry["loss"] for entry in curve]

    steps, _, curve = learn(tmp_path / "resumed", 36)
    assert steps[-1] == 36, "the signal arrives behind the update"
    assert len(curve) == 3
    rest, weight, curve = learn(tmp_path / "resumed", -1)
    _, whole_weight, whole_curve = learn(tmp_path / "whole", -1)
    assert rest == list(range(37, 90))
    assert torch.equal(weight, whole_weight)
    assert curve == whole_curve


def test_bf16_covers_the_whole_loss_when_asked_for(tmp_path: Path):
    model, kinds = nn.Linear(2, 1), []

    def loss(step: int) -> Tensor:
        value = model(torch.ones(1, 2))
        kinds.append(value.dtype)
        return value.sum()

    for precision in ("bf16", "fp32"):
        config = replace(CONFIG, steps=1)
        train(
            config, model, without_data(loss), precision, tmp_path, no_progress, precision=precision
        )
    assert kinds == [torch.bfloat16, torch.float32]


def test_progress_says_loss_rate_gradient_and_time_left(tmp_path: Path):
    model, notes = Scalar(), []
    loss = without_data(lambda step: 2.0 * model.weight.sum() + 3.0)
    config = replace(CONFIG, learning_rate=1e-6, steps=20)
    train(config, model, loss, "job", tmp_path, lambda done, total, note="": notes.append(note))
    assert notes[:9] == [""] * 9
    assert notes[9] == "loss 3.0000, rate 1.0e-06, gradient 2, 0 s left"


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
    """A loss with gradient 1, so that Adam moves the weight by the learning rate; records the
    weight."""

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


def test_a_checkpoint_of_another_job_is_not_resumed(tmp_path: Path):
    model, path = Scalar(), []
    train(
        replace(CONFIG, steps=20),
        model,
        without_data(walk(model, path)),
        "one job",
        tmp_path,
        no_progress,
    )
    train(
        replace(CONFIG, steps=20),
        model,
        without_data(walk(model, path)),
        "another job",
        tmp_path,
        no_progress,
    )
    assert len(path) == 40


def test_a_finished_training_is_not_repeated(tmp_path: Path):
    model, path = Scalar(), []
    for _ in range(2):
        train(
            replace(CONFIG, steps=20),
            model,
            without_data(walk(model, path)),
            "job",
            tmp_path,
            no_progress,
        )
    assert len(path) == 20


def test_draws_differ_by_seed_and_number_only():
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
    [
        ({"avx512_bf16": True}, "bf16"),
        ({"amx_bf16": True}, "bf16"),
        ({"avx512_bf16": True, "avx512_fp16": True}, "fp32"),
        ({"avx512_bf16": True, "avx512_fp16": True, "amx_bf16": True}, "bf16"),
        ({"avx512_f": True}, "fp32"),
        ({}, "fp32"),
    ],
)
def test_auto_takes_bf16_only_where_the_processor_gains_by_it(
    flags: dict[str, bool], precision: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: flags)
    assert resolve_precision("auto", torch.device("cpu")) == precision
    assert resolve_precision("fp32", torch.device("cpu")) == "fp32"
