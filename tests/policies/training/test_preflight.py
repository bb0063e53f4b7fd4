import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from policies.training.config import TrainingConfig
from policies.training.loop import Objective, train
from policies.training.preflight import Estimate, preflight
from robots.interfaces import no_progress

CONFIG = TrainingConfig(
    steps=200, learning_rate=1e-2, warmup_steps=3, log_every=50, checkpoint_seconds=0.0
)


class Clock:
    """A clock that advances by explicit calls only."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class TwoStages:
    """A two-stage batch function with different durations of the stages."""

    def __init__(self, clock: Clock, decode: float, collate: float) -> None:
        self.clock, self.lengths = clock, (decode, collate)

    def __call__(self, step: int) -> Tensor:
        return self.collate(self.decode(step))

    def decode(self, step: int) -> np.ndarray:
        self.clock.seconds += self.lengths[0]
        return np.ones((8, 4), np.float32)

    def collate(self, rows: np.ndarray) -> Tensor:
        self.clock.seconds += self.lengths[1]
        return torch.from_numpy(rows)


class Dot(nn.Module):
    """Four weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))


def estimate(
    decode: float, collate: float, compute: float, config: TrainingConfig = CONFIG
) -> Estimate:
    clock, model = Clock(), Dot()

    def loss(rows: Tensor, step: int) -> Tensor:
        clock.seconds += compute
        return (rows @ model.weight).square().mean()

    found = preflight(config, model, TwoStages(clock, decode, collate), loss, clock)
    assert found is not None
    return found


def test_slow_decoding_is_named_with_its_share():
    found = estimate(
        decode=6.0, collate=1.0, compute=3.0, config=replace(CONFIG, preflight_seconds=1000.0)
    )
    assert found.bottleneck == "decode"
    assert found.seconds == pytest.approx(
        {"decode": 6.0, "collate": 1.0, "compute": 3.0, "optimize": 0.0}
    )
    assert found.note().startswith("preflight: decode takes 60% of 10 s per update, about 33.3 min")


@pytest.mark.parametrize(
    ("slow", "lengths"), [("collate", (1.0, 5.0, 3.0)), ("compute", (1.0, 2.0, 3.0))]
)
def test_the_slowest_part_is_named(slow: str, lengths: tuple[float, float, float]):
    assert estimate(*lengths).bottleneck == slow


def test_a_batch_of_one_stage_counts_as_decoding():
    clock, model = Clock(), Dot()
    stages = TwoStages(clock, 2.0, 1.0)
    found = preflight(
        CONFIG,
        model,
        lambda step: stages(step),
        lambda rows, step: (rows @ model.weight).sum(),
        clock,
    )
    assert found is not None
    assert found.seconds == pytest.approx(
        {"decode": 3.0, "collate": 0.0, "compute": 0.0, "optimize": 0.0}
    )


def test_it_ends_when_its_seconds_are_over():
    assert estimate(6.0, 1.0, 3.0).repetitions == 3


def test_it_takes_no_more_than_three_percent_of_the_updates():
    assert estimate(0.0, 0.0, 0.0).repetitions == 6
    assert estimate(0.0, 0.0, 0.0, replace(CONFIG, steps=10_000)).repetitions == 10


def test_a_short_training_and_one_without_seconds_have_none():
    model = Dot()
    for config in (replace(CONFIG, steps=99), replace(CONFIG, preflight_seconds=0.0)):
        assert (
            preflight(config, model, lambda step: None, lambda rows, step: model.weight.sum())
            is None
        )


def test_memory_is_that_of_weights_moments_and_what_the_gradient_needs():
    # Four weights; kept for their gradient are the batch of 8 x 4 and the 8 products before the
    # square.
    assert estimate(0.0, 0.0, 0.0).bytes == {
        "parameters": 16,
        "gradients": 16,
        "moments": 32,
        "average": 16,
        "activations": 8 * 4 * 4 + 8 * 4,
    }


class Norm(nn.Module):
    """A running mean, dropout from torch's own stream, and a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(4), nn.Dropout()

    def forward(self, rows: Tensor) -> Tensor:
        return self.drop(self.norm(rows)).square().mean()


def learn(config: TrainingConfig, out: Path) -> dict[str, Tensor]:
    torch.manual_seed(0)
    np.random.seed(0)
    model = Norm()
    data = torch.randn(16, 4)
    objective = Objective(
        lambda step: data * float(np.random.rand()), lambda rows, step: model(rows)
    )
    return train(config, model, objective, "job", out, no_progress).average


def test_nothing_that_a_training_depends_on_is_touched(tmp_path: Path):
    with_it, without = tmp_path / "with", tmp_path / "without"
    for out in (with_it, without):
        out.mkdir()
    average, expected = (
        learn(CONFIG, with_it),
        learn(replace(CONFIG, preflight_seconds=0.0), without),
    )
    assert (with_it / "preflight.json").exists()
    assert not (without / "preflight.json").exists()
    assert average.keys() == expected.keys()
    assert all(torch.equal(average[name], expected[name]) for name in expected)


def test_the_report_is_written_and_shown_as_progress(tmp_path: Path):
    model, notes = Dot(), []
    objective = Objective(
        lambda step: torch.ones(8, 4), lambda rows, step: (rows @ model.weight).square().mean()
    )
    train(
        CONFIG, model, objective, "job", tmp_path, lambda done, total, note="": notes.append(note)
    )
    report = json.loads((tmp_path / "preflight.json").read_text())
    assert report["bottleneck"] in report["seconds_per_update"]
    assert report["estimated_seconds"] == pytest.approx(
        200 * sum(report["seconds_per_update"].values())
    )
    assert report["peak_memory_gb"] == pytest.approx(sum(report["estimated_bytes"].values()) / 1e9)
    assert all(note.startswith("preflight: ") for note in notes[:49])
    assert notes[49].startswith("loss ")


def test_a_resumed_training_has_none(tmp_path: Path):
    model, looked = Dot(), []

    def stop(done: int, total: int, note: str = "") -> None:
        if done == 60:
            raise KeyboardInterrupt

    def batch(step: int) -> Tensor:
        looked.append(step)
        return torch.ones(8, 4)

    objective = Objective(batch, lambda rows, step: (rows @ model.weight).square().mean())
    with pytest.raises(KeyboardInterrupt):
        train(CONFIG, model, objective, "job", tmp_path, stop)
    assert looked == [*range(6), *range(60)]
    looked.clear()
    train(CONFIG, model, objective, "job", tmp_path, no_progress)
    assert looked == list(range(60, 200))
