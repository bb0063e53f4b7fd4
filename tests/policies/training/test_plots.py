import json
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import torch

from policies.card import Shapes
from policies.data.windows import Windows
from policies.families.diffusion import DiffusionPolicy
from policies.networks.config import MlpConfig
from policies.policy_config import DiffusionPolicyConfig
from policies.training.config import TrainingConfig
from policies.training.loggers import CURVE
from policies.training.plots import LOSS, draw_curve, draw_entries, draw_samples
from robots.spec import FieldSpec

METRES = FieldSpec(shape=(2,), unit="m")
SIZES = DiffusionPolicyConfig(
    horizon=4,
    n_action_steps=2,
    train_timesteps=4,
    inference_steps=2,
    network=MlpConfig(width=8, blocks=1),
)


def policy_and_windows(
    entries: int, anchor: int | None, count: int = 5
) -> tuple[DiffusionPolicy, Windows]:
    """An untrained policy with `entries` observation and action entries, and windows of random
    steps."""
    draw = torch.Generator().manual_seed(0)
    module = DiffusionPolicy(SIZES, Shapes.of_vector(entries, entries, anchor))
    rows = torch.arange(count)[:, None]
    padded = torch.zeros(count, 4, dtype=torch.bool)
    return module, Windows(
        torch.randn(count, entries, generator=draw),
        rows,
        torch.randn(count, 4, entries, generator=draw),
        padded,
    )


def read_picture(out: Path) -> np.ndarray:
    from matplotlib.image import imread

    return imread(out / "samples.png")


@pytest.mark.parametrize(("entries", "anchor"), [(2, 0), (2, None), (1, None), (3, 0), (9, None)])
def test_actions_of_any_size_are_drawn(entries: int, anchor: int | None, tmp_path: Path):
    module, windows = policy_and_windows(entries, anchor)
    draw_samples(module, windows, tmp_path, 0, METRES)
    height, width, _ = read_picture(tmp_path).shape
    assert height > 200
    assert width > 200


def test_a_single_window_is_drawn(tmp_path: Path):
    draw_samples(*policy_and_windows(2, 0, count=1), tmp_path, 0, METRES)
    assert read_picture(tmp_path).shape[0] > 200


def test_the_same_seed_draws_the_same_picture_and_another_one_another(tmp_path: Path):
    module, windows = policy_and_windows(2, 0)
    pictures = []
    for seed in (3, 3, 4):
        torch.randn(3)
        draw_samples(module, windows, tmp_path, seed, METRES)
        pictures.append((tmp_path / "samples.png").read_bytes())
    assert pictures[0] == pictures[1] != pictures[2]


@pytest.mark.parametrize("learning", [True, False])
def test_the_training_mode_of_the_policy_is_restored(learning: bool, tmp_path: Path):
    module, windows = policy_and_windows(2, 0)
    module.train(learning)
    draw_samples(module, windows, tmp_path, 0, METRES)
    assert module.training == learning
    assert all(parameter.grad is None for parameter in module.parameters())


def test_a_run_is_drawn_with_a_panel_per_figure(tmp_path: Path):
    from matplotlib.image import imread

    entries = [{"steps": float(step), "success": 0.5, "return": 2.0 * step} for step in range(4)]
    labels = {"success": "success", "return": "return"}
    draw_entries(entries, tmp_path / "one.png", ("steps", "steps"), {"return": "return"})
    draw_entries(entries, tmp_path / "two.png", ("steps", "steps"), labels)
    one, two = (imread(tmp_path / name) for name in ("one.png", "two.png"))
    assert two.shape[1] - one.shape[1] == 2 * 120, "two inches more for another panel"
    with pytest.raises(KeyError, match="kl"):
        draw_entries(entries, tmp_path / "none.png", ("steps", "steps"), {"kl": "divergence"})


@pytest.mark.parametrize(("steps", "every"), [(5, 1), (30, 3), (999, 99), (20_000, 100)])
def test_a_short_run_has_ten_entries_or_one_per_update(steps: int, every: int):
    assert TrainingConfig(steps=steps, learning_rate=1e-3).entry_every == every


def test_a_given_distance_of_entries_is_kept():
    assert TrainingConfig(steps=30, learning_rate=1e-3, log_every=20).entry_every == 20


def test_a_curve_of_one_entry_is_seen(tmp_path: Path):
    (tmp_path / CURVE).write_text(json.dumps({"step": 30, "loss": 2.0}) + "\n")
    draw_curve(tmp_path, "loss")
    picture = matplotlib.image.imread(tmp_path / LOSS)[..., :3]
    # The curve has a colour; axes and grid are grey.
    assert np.ptp(picture, axis=-1).max() > 0.3
