"""Every failure that the health checks detect, each with a healthy training that must not be
stopped."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from policies.training import loop
from policies.training.config import TrainingConfig
from policies.training.health import TrainingHealth
from policies.training.loop import TrainingResult, train, without_data
from robots.errors import HandoffError
from robots.interfaces import no_progress

CONFIG = TrainingConfig(
    steps=90, learning_rate=1e-2, warmup_steps=3, log_every=10, checkpoint_seconds=0.0
)


class Layers(nn.Module):
    """y = second * first, and a third weight that may take part."""

    def __init__(self, first: float = 1.0, second: float = 1.0) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.tensor([first]))
        self.second = nn.Parameter(torch.tensor([second]))
        self.third = nn.Parameter(torch.ones(1))


def run(
    model: nn.Module, loss: Callable[[int], Tensor], out: Path, config: TrainingConfig = CONFIG
) -> TrainingResult:
    return train(config, model, without_data(loss), "job", out, no_progress)


def test_a_parameter_that_the_loss_leaves_out_is_named(tmp_path: Path):
    model = Layers()
    with pytest.raises(
        HandoffError, match=r"1 of 3 parameters have had no gradient in 20 updates: third\."
    ):
        run(model, lambda step: (model.first * model.second).square().sum(), tmp_path)


def test_a_parameter_whose_gradient_is_always_zero_is_named(tmp_path: Path):
    model = Layers()
    with pytest.raises(HandoffError, match="no gradient in 20 updates: third"):
        run(
            model,
            lambda step: ((model.first * model.second).square() + 0.0 * model.third).sum(),
            tmp_path,
        )


def test_no_more_than_five_are_named(tmp_path: Path):
    model = nn.ParameterDict({f"p{number}": torch.ones(1) for number in range(8)})
    with pytest.raises(HandoffError, match=r"7 of 8 .* p1, p2, p3, p4, p5 and 2 more"):
        run(model, lambda step: model["p0"].sum(), tmp_path)


def test_a_frozen_parameter_needs_no_gradient(tmp_path: Path):
    model = Layers()
    model.third.requires_grad_(False)
    assert (
        run(model, lambda step: (model.first * model.second + 1.0).square().sum(), tmp_path).loss
        > 0
    )


def test_weights_behind_one_that_starts_at_zero_get_their_gradient_in_time(tmp_path: Path):
    model = Layers(second=0.0)
    model.third.requires_grad_(False)
    run(
        model,
        lambda step: (model.first * model.second - 1.0).square().sum(),
        tmp_path,
        replace(CONFIG, log_every=1),
    )


def test_a_parameter_that_takes_part_seldom_lives(tmp_path: Path):
    model = Layers()

    def loss(step: int) -> Tensor:
        return (model.first * model.second + (model.third if step == 4 else 0.0)).square().sum()

    run(model, loss, tmp_path)


def test_gradients_that_have_all_become_zero_stop_at_the_third_look(tmp_path: Path):
    model = nn.Linear(1, 1)
    with pytest.raises(HandoffError, match=r"all 2 parameters were zero .* up to update 70"):
        run(model, lambda step: (model(torch.ones(1, 1)) * (step < 45)).sum(), tmp_path)


def test_gradients_that_are_zero_for_a_short_while_do_not_stop(tmp_path: Path):
    model = nn.Linear(1, 1)
    run(model, lambda step: (model(torch.ones(1, 1)) * (not 45 <= step < 65)).sum(), tmp_path)


def test_a_loss_without_any_trainable_parameter_stops_at_once(tmp_path: Path):
    model = nn.Linear(1, 1)
    with pytest.raises(HandoffError, match="depends on no trainable parameter"):
        run(model, lambda step: model(torch.ones(1, 1)).detach().sum(), tmp_path)


def test_a_rate_too_low_to_move_a_weight_stops(tmp_path: Path):
    model = nn.ParameterDict({"weight": torch.ones(3)})
    with pytest.raises(
        HandoffError, match=r"no weight changed in the updates before 10, although .* up to 1e-12"
    ):
        run(
            model,
            lambda step: model["weight"].sum(),
            tmp_path,
            replace(CONFIG, learning_rate=1e-12),
        )


def test_a_rate_of_zero_may_leave_the_weights(tmp_path: Path):
    model = nn.ParameterDict({"weight": torch.ones(3)})
    cosine = replace(CONFIG, schedule="cosine", log_every=1)
    assert (
        run(model, lambda step: model["weight"].sum(), tmp_path, cosine).average["weight"].max()
        < 1.0
    )


def test_weights_in_any_order_of_memory_are_compared():
    weight = nn.Parameter(torch.ones(2, 3, 5, 5).to(memory_format=torch.channels_last))
    health = TrainingHealth({"weight": weight}, torch.optim.AdamW([weight]))
    with torch.no_grad():
        weight += 1.0
    health.check(1, 1e-3)
    with pytest.raises(HandoffError, match="no weight changed"):
        health.check(2, 1e-3)


def nan_from(model: nn.Module, first: int) -> Callable[[int], Tensor]:
    return lambda step: model(torch.ones(1, 1)).sum() * (float("nan") if step >= first else 1.0)


def test_a_loss_that_is_not_finite_stops_between_entries_when_those_are_rare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(loop, "CHECK_SECONDS", 0.0)
    model = nn.Linear(1, 1)
    with pytest.raises(HandoffError, match="loss is nan in the 34 updates before 34"):
        run(model, nan_from(model, 33), tmp_path, replace(CONFIG, log_every=90))


def test_weights_spoilt_by_a_finite_loss_are_named_and_not_saved(tmp_path: Path):
    model = nn.ParameterDict({"weight": torch.ones(1), "other": torch.ones(1)})

    def loss(step: int) -> Tensor:
        # The slope of the root is infinite at 0, its value is not.
        root = (0.0 * model["weight"]).sqrt() if step == 39 else model["weight"]
        return (root + model["other"]).sum()

    with pytest.raises(
        HandoffError, match="1 of 2 parameters are not finite after update 40: weight"
    ):
        run(model, loss, tmp_path)
    assert torch.load(tmp_path / "training.pt", weights_only=True)["step"] == 30


def test_spoilt_weights_are_not_kept(tmp_path: Path):
    model, kept = nn.Linear(1, 1), []
    with pytest.raises(HandoffError, match="loss is nan"):
        train(
            CONFIG,
            model,
            without_data(nan_from(model, 33)),
            "job",
            tmp_path,
            no_progress,
            keep_every=7,
            keep=lambda step, average: kept.append(step),
        )
    assert kept == [7, 14, 21, 28]


def test_an_exploding_gradient_is_reported():
    weight = nn.Parameter(torch.ones(1))
    health = TrainingHealth({"weight": weight}, torch.optim.AdamW([weight]))
    assert [health.exploding(norm) for norm in (1.0, 2.0, 2.0, 2.0, 3.0, 150.0)] == [""] * 6
    assert health.exploding(250.0) == "gradient norm 250 is 125 times its median"
