"""Evaluates world models on held-out episodes of play.

Episodes are imagined open-loop, from a recorded state with the recorded actions, and compared with
the recorded observations field by field; the baseline predicts that nothing changes. Of an
ensemble, the disagreement of its members is compared with their error.

Shape suffixes as in `policies.world_model.model`; N sequences.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from policies.world_model.config import WorldModelConfig
from policies.world_model.ensemble import WorldModelEnsemble
from policies.world_model.model import WorldModel, as_fields, load_world_model
from policies.world_model.play import Play, normalised, read_play, split_play
from robots.errors import HandoffError
from robots.interfaces import Observation

BATCH_SIZE = 256
"""Sequences per batch."""
MAX_STARTS = 4000
"""Maximum number of states from which held-out episodes are imagined."""


def check_held_out(data: Play, episodes: np.ndarray, horizons: tuple[int, ...]) -> None:
    """Checks, before hours of training, that the held-out episodes can be evaluated.

    Raises:
        HandoffError: none is longer than the longest horizon.
    """
    longest = int((data.ends_E - data.starts_E)[episodes].max())
    if longest <= max(horizons):
        fitting = [horizon for horizon in horizons if horizon < longest]
        raise HandoffError(
            f"world model: no held-out episode is longer than the longest horizon of {max(horizons)} steps, the "
            f"longest has {longest}. Set horizons to shorter ones, such as {fitting or [longest - 1]}."
        )


def open_loop(
    model: WorldModel, data: Play, episodes: np.ndarray, horizons: tuple[int, ...], seed: int
) -> dict[str, Any]:
    """Open-loop prediction errors from states of `episodes` with the recorded actions; see
    `train_world_model`."""
    # Choose start states.
    longest = max(horizons)
    firsts = _start_states(data, episodes, longest, seed)
    # Imagine in batches and collect squared errors at the horizons.
    generator = torch.Generator().manual_seed(seed)
    squares: dict[int, list[np.ndarray]] = {horizon: [] for horizon in horizons}
    still: dict[int, list[np.ndarray]] = {horizon: [] for horizon in horizons}
    for begin in range(0, len(firsts), BATCH_SIZE):
        steps = firsts[begin : begin + BATCH_SIZE, None] + np.arange(longest + 1)
        obs_BLO, action_BLA = normalised(model, data, steps)
        with torch.no_grad():
            latent = model.initial_latent(obs_BLO[:, 0], model.gumbel(len(steps), generator))
            for step in range(1, longest + 1):
                latent = model.imagine(
                    latent, action_BLA[:, step - 1], model.gumbel(len(steps), generator)
                )
                if step in squares:
                    squares[step].append((latent.obs_BO - obs_BLO[:, step]).square().numpy())
                    still[step].append((obs_BLO[:, 0] - obs_BLO[:, step]).square().numpy())
    # Root mean square errors per horizon and field.
    scale, varies = model.normalize_observation.scale.numpy(), _varies(data)
    report: dict[str, Any] = {"error": {}, "stays": {}, "errors": {}}
    for horizon in horizons:
        mean_O = np.concatenate(squares[horizon]).mean(axis=0)
        # The normaliser's unit is two standard deviations.
        report["error"][str(horizon)] = float(2.0 * np.sqrt(mean_O[varies].mean()))
        report["stays"][str(horizon)] = float(
            2.0 * np.sqrt(np.concatenate(still[horizon]).mean(axis=0)[varies].mean())
        )
        field_errors, end = {}, 0
        for name, spec in data.observation.items():
            part = slice(end, end + prod(spec.shape))
            field_errors[name] = float(np.sqrt((mean_O[part] * scale[part] ** 2).mean()))
            end = part.stop
        report["errors"][str(horizon)] = field_errors
    return report


def compare_members(
    models: WorldModelEnsemble, data: Play, episodes: np.ndarray, horizon: int, seed: int
) -> dict[str, float]:
    """Compares the disagreement of an ensemble's members with their error on `episodes`.

    Args:
        models: ensemble of at least two members.
        data: recorded play.
        episodes: numbers of held-out episodes.
        horizon: steps of a sequence.
        seed: of start states and noise.

    Returns:
        usual: 95th percentile of the disagreement about recorded steps, each predicted from
            recorded ones [standard deviations of a step's change].
        rank_correlation: Spearman's, of that disagreement with the error of the mean prediction.
        rank_correlation_imagined: Spearman's, of the mean disagreement along `horizon` imagined
            steps with the error at their end.
    """
    firsts = _start_states(data, episodes, horizon, seed)
    rng = np.random.default_rng(seed)
    first = models.members[0]
    spread, error, imagined_spread, imagined_error = ([] for _ in range(4))
    for begin in range(0, len(firsts), BATCH_SIZE):
        steps = firsts[begin : begin + BATCH_SIZE, None] + np.arange(horizon + 1)
        obs_BLO, action_BLA = normalised(first, data, steps)
        count = len(steps)
        leader_B = torch.from_numpy(rng.integers(len(models), size=count))
        with torch.no_grad():
            recorded = models.initial(obs_BLO[:, 0], models.noise(rng, count))
            imagined, summed_B = list(recorded), torch.zeros(count)
            for step in range(1, horizon + 1):
                action_BA, obs_BO = action_BLA[:, step - 1], obs_BLO[:, step]
                noise_BMZ = models.noise(rng, count)
                prediction_MBO = models.predictions(recorded, action_BA)
                spread.append(models.spread(prediction_MBO).numpy())
                error.append(models.distance(prediction_MBO.mean(dim=0), obs_BO).numpy())
                recorded = models.observe(recorded, action_BA, obs_BO, noise_BMZ)
                summed_B += models.disagreement(imagined, action_BA)
                imagined = models.imagine(imagined, action_BA, noise_BMZ, leader_B)
        imagined_spread.append((summed_B / horizon).numpy())
        imagined_error.append(models.distance(imagined[0].obs_BO, obs_BLO[:, horizon]).numpy())
    spread_N = np.concatenate(spread)
    correlation = _rank_correlation(spread_N, np.concatenate(error))
    correlation_imagined = _rank_correlation(
        np.concatenate(imagined_spread), np.concatenate(imagined_error)
    )
    return {
        "usual": float(np.percentile(spread_N, 95.0)),
        "rank_correlation": correlation,
        "rank_correlation_imagined": correlation_imagined,
    }


class ImaginedEpisodes(NamedTuple):
    """Held-out episodes, recorded and imagined from their first step with the recorded actions."""

    task: str
    rate_hz: float
    episodes: list[tuple[Observation, Observation]]
    """Pairs of recorded and imagined observations, per field (T, ...)."""


def imagine_held_out(
    model: Path, config: WorldModelConfig, play: Path, episodes: int, steps: int
) -> ImaginedEpisodes:
    """Imagines the first `steps` steps of the first held-out episodes.

    Args:
        model: folder of the world model.
        config: options with which it was trained.
        play: folder of the store on which it was trained.
        episodes: maximum number of episodes.
        steps: maximum number of steps per episode.
    """
    network, card, _ = load_world_model(model)
    data = read_play(play / "store.zarr", config)
    _, held_out = split_play(data, config)
    results = []
    for number in held_out[:episodes]:
        rows = data.steps_of(number)[:steps]
        obs_BLO, action_BLA = normalised(network, data, rows[None])
        generator = torch.Generator().manual_seed(int(number))
        with torch.no_grad():
            latent = network.initial_latent(obs_BLO[:, 0], network.gumbel(1, generator))
            estimates = [latent.obs_BO]
            for step in range(1, len(rows)):
                latent = network.imagine(
                    latent, action_BLA[:, step - 1], network.gumbel(1, generator)
                )
                estimates.append(latent.obs_BO)
        imagined_TO = network.normalize_observation.inverse(torch.cat(estimates)).numpy()
        results.append(
            (
                as_fields(card.observation, data.obs_MO[rows]),
                as_fields(card.observation, imagined_TO),
            )
        )
    return ImaginedEpisodes(data.task, data.rate_hz, results)


def _rank_correlation(one_N: np.ndarray, other_N: np.ndarray) -> float:
    """Spearman's rank correlation."""
    from scipy.stats import rankdata

    return float(np.corrcoef(rankdata(one_N), rankdata(other_N))[0, 1])


def _start_states(data: Play, episodes: np.ndarray, longest: int, seed: int) -> np.ndarray:
    """Steps of `episodes` that at least `longest` others follow, in random order."""
    firsts = np.concatenate(
        [data.steps_of(number, longest)[:: max(1, longest // 10)] for number in episodes]
    )
    return np.random.default_rng(seed).permutation(firsts)[:MAX_STARTS]


def _varies(data: Play) -> np.ndarray:
    """Mask (O,) of the entries that are not constant."""
    return data.obs_MO.std(axis=0) > 1e-6
