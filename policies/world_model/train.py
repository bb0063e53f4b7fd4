"""Trains a world model on play with a success classifier on its latents, and evaluates its
predictions.

Held-out episodes are imagined open-loop, from a recorded state with the recorded actions, and
compared with the recorded observations field by field; the baseline predicts that nothing changes.

Shape suffixes as in `policies.world_model.model`; M recorded steps, E episodes, N sequences.
"""

from __future__ import annotations

import hashlib
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from policies.normalize import MomentStatistics
from policies.random_streams import update_seed
from policies.rewards.labelled_steps import LabelledSteps
from policies.rewards.train_success_classifier import train_success
from policies.training.loop import (
    STATE,
    Objective,
    job_identity,
    resolve_device,
    resolve_precision,
    rng,
    torch_threads,
    train,
)
from policies.training.plots import draw_curve
from policies.world_model.config import LATENT, WorldModelCard, WorldModelConfig
from policies.world_model.model import (
    MIN_CHANGE,
    Latent,
    WorldModel,
    as_fields,
    likelihood_loss,
    load_world_model,
    locate_scaled_features,
    save_world_model,
)
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import Observation, Progress
from robots.spec import FieldSpec

SUCCESS = "success"
"""Folder of the success classifier within the world model's folder."""
MIN_MOTION = 1e-3
"""Standard deviation of a step's change up to which an entry counts as constant within an episode
[normalised units]."""
BATCH_SIZE = 256
"""Sequences per batch in evaluation."""
MAX_STARTS = 4000
"""Maximum number of states from which held-out episodes are imagined."""


class Play(NamedTuple):
    """M recorded steps of E episodes."""

    obs_MO: np.ndarray
    action_MA: np.ndarray
    ends_E: np.ndarray
    success_M: np.ndarray
    """Success label of every step, bool; it refers to the state after the action."""
    observation: dict[str, FieldSpec]
    action: FieldSpec
    task: str
    rate_hz: float

    @property
    def starts_E(self) -> np.ndarray:
        """First step of every episode."""
        return np.concatenate([[0], self.ends_E[:-1]])

    def steps_of(self, episode: int, before_end: int = 0) -> np.ndarray:
        """Indices of the steps of an episode, without the last `before_end`."""
        return np.arange(int(self.starts_E[episode]), int(self.ends_E[episode]) - before_end)

    def digest(self) -> str:
        """Digest (hex sha256) of the data."""
        digest = hashlib.sha256(repr((self.task, self.rate_hz, self.observation)).encode())
        for values in (self.obs_MO, self.action_MA, self.ends_E, self.success_M):
            digest.update(np.ascontiguousarray(values).tobytes())
        return digest.hexdigest()


def read_play(path: Path, config: WorldModelConfig) -> Play:
    """Reads the store at `path`.

    Raises:
        HandoffError: no store, fields that are missing or images, no success label, an episode
            shorter than a sequence, or a value that is not finite.
    """
    # Check the schema.
    store = EpisodeStore.open(path)
    stream = store.schema.stream(config.stream)
    label = config.success.classifier.label_field
    names = (*config.fields, config.action_field, label)
    missing = [name for name in names if name not in stream.fields]
    if missing or not config.fields:
        raise HandoffError(
            f"world model: fields {list(config.fields)}; {missing} of fields, action and label are missing in "
            f"{path}; stream '{config.stream}' has {sorted(stream.fields)}."
        )
    if images := [name for name in config.fields if stream.fields[name].unit == "u8"]:
        raise HandoffError(
            f"world model: {images} are images, expected vectors: it imagines vectors, not pictures. Leave them out; "
            "policies that are fine-tuned in imagination observe vectors, too."
        )
    # Check the lengths of the episodes.
    ends = store.ends(config.stream)
    shortest = int(np.diff(ends, prepend=0).min()) if len(ends) else 0
    if shortest < config.sequence:
        raise HandoffError(
            f"world model: {len(ends)} episodes, the shortest of {shortest} steps, expected at least one "
            f"and none shorter than a sequence of {config.sequence}."
        )
    # Read the data.
    columns = {name: store.column(config.stream, name).reshape(ends[-1], -1) for name in names}
    if broken := [name for name, values in columns.items() if not np.isfinite(values).all()]:
        raise HandoffError(f"{path}: fields {broken} are not finite everywhere. Was a sensor lost?")
    return Play(
        obs_MO=np.concatenate([columns[name] for name in config.fields], axis=1).astype(np.float32),
        action_MA=columns[config.action_field].astype(np.float32),
        ends_E=ends,
        success_M=columns[label][:, 0] > 0.5,
        observation={name: stream.fields[name] for name in config.fields},
        action=stream.fields[config.action_field],
        task=store.schema.name,
        rate_hz=stream.rate_hz,
    )


def train_world_model(
    config: WorldModelConfig, play: Path, out: Path, progress: Progress
) -> dict[str, Any]:
    """Trains on `play/store.zarr` and writes model, classifier, loss curve and its plot to `out`.

    Args:
        config: options of model, training and classifier.
        play: folder of the store.
        out: folder of the model; an interrupted run is resumed from its checkpoint there.
        progress: called after every update.

    Returns:
        Metrics: loss, cpu_seconds, `error` (per horizon, root mean square error of imagined
        observations in standard deviations of the entries), `stays` (the same for the prediction
        that nothing changes), `errors` (per horizon and field, in the field's unit), `success` (of
        the classifier, see `policies.rewards.train_success_classifier.metrics`), steps and
        parameters.

    Raises:
        HandoffError: unusable play, a loss that is not finite, or no threshold with which the
            classifier is precise enough.
    """
    # Set up data, model and loss.
    training = config.training
    device = resolve_device(training.device)
    precision = resolve_precision(training.precision, device)
    data = read_play(play / "store.zarr", config)
    training_episodes, held_out = _split(data, config)
    with torch_threads(training.threads):
        model = new_world_model(config, data, training_episodes).to(device)
        objective = _objective(model, config, data, training_episodes)
        identity = job_identity(config, data.digest(), precision, device)
        # Train, evaluate on held-out episodes, and train the classifier.
        trained = train(training, model, objective, identity, out, progress, precision=precision)
        model.load_state_dict(trained.average)
        model.requires_grad_(False).eval().cpu()
        draw_curve(out, "world model")
        report = open_loop(model, data, held_out, config.horizons, training.seed)
        success = _train_classifier(model, config, data, out / SUCCESS, progress)
    # Save the model.
    card = WorldModelCard(
        task=data.task,
        rate_hz=data.rate_hz,
        observation=data.observation,
        action=data.action,
        action_low=tuple(data.action_MA.min(axis=0).tolist()),
        action_high=tuple(data.action_MA.max(axis=0).tolist()),
        scaled_features=config.scaled_features,
        sizes=config.sizes,
        threshold=success["threshold"],
        training_data=data.digest(),
    )
    save_world_model(out, card, model, torch.from_numpy(data.obs_MO[data.starts_E]))
    (out / STATE).unlink()
    return {
        "loss": trained.loss,
        "cpu_seconds": round(trained.cpu_seconds, 1),
        **report,
        "success": success,
        "steps": len(data.obs_MO),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


def new_world_model(config: WorldModelConfig, data: Play, episodes: np.ndarray) -> WorldModel:
    """A world model with new weights, normalised to the steps of `episodes`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.training.seed)
        scaled_features = locate_scaled_features(data.observation, config.scaled_features)
        model = WorldModel(
            data.obs_MO.shape[1], data.action_MA.shape[1], config.sizes, scaled_features
        )
    rows = np.concatenate([data.steps_of(number) for number in episodes])
    model.normalize_observation.fit(data.obs_MO[rows])
    model.normalize_action.fit(data.action_MA[rows])
    inner = np.setdiff1d(rows, data.ends_E - 1)
    scale = model.normalize_observation.scale.numpy()
    statistics = MomentStatistics((data.obs_MO.shape[1],))
    statistics.update((data.obs_MO[inner + 1] - data.obs_MO[inner]) / scale)
    model.change.copy_(torch.from_numpy(np.maximum(statistics.deviation, MIN_CHANGE)))
    model.moves.copy_(torch.from_numpy(statistics.deviation > MIN_MOTION))
    return model


def posterior(model: WorldModel, data: Play, episodes: np.ndarray, seed: int) -> list[Latent]:
    """Posterior latents of every episode, as one `Latent` per episode with a row per step."""
    generator = torch.Generator().manual_seed(seed)
    latents_of_episodes: list[Latent] = []
    for first in range(0, len(episodes), BATCH_SIZE):
        batch = episodes[first : first + BATCH_SIZE]
        starts, lengths = data.starts_E[batch], (data.ends_E - data.starts_E)[batch]
        steps = np.minimum(np.arange(lengths.max()), lengths[:, None] - 1) + starts[:, None]
        obs_BLO, action_BLA = _normalised(model, data, steps)
        with torch.no_grad():
            latents = [model.initial_latent(obs_BLO[:, 0], model.gumbel(len(batch), generator))]
            for step in range(1, steps.shape[1]):
                noise_BZ = model.gumbel(len(batch), generator)
                latents.append(
                    model.observe(latents[-1], action_BLA[:, step - 1], obs_BLO[:, step], noise_BZ)
                )
        columns = [torch.stack(parts, dim=1) for parts in zip(*latents, strict=True)]
        for row, length in enumerate(lengths):
            latents_of_episodes.append(Latent(*(column[row, :length] for column in columns)))
    return latents_of_episodes


def open_loop(
    model: WorldModel, data: Play, episodes: np.ndarray, horizons: tuple[int, ...], seed: int
) -> dict[str, Any]:
    """Open-loop prediction errors from states of `episodes` with the recorded actions; see
    `train_world_model`."""
    # Choose start states.
    longest = max(horizons)
    firsts = np.concatenate(
        [data.steps_of(number, longest)[:: max(1, longest // 10)] for number in episodes]
    )
    if not len(firsts):
        raise HandoffError(
            f"world model: no held-out episode is longer than the longest horizon of {longest} steps."
        )
    firsts = np.random.default_rng(seed).permutation(firsts)[:MAX_STARTS]
    # Imagine in batches and collect squared errors at the horizons.
    generator = torch.Generator().manual_seed(seed)
    squares: dict[int, list[np.ndarray]] = {horizon: [] for horizon in horizons}
    still: dict[int, list[np.ndarray]] = {horizon: [] for horizon in horizons}
    for begin in range(0, len(firsts), BATCH_SIZE):
        steps = firsts[begin : begin + BATCH_SIZE, None] + np.arange(longest + 1)
        obs_BLO, action_BLA = _normalised(model, data, steps)
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
    _, held_out = _split(data, config)
    results = []
    for number in held_out[:episodes]:
        rows = data.steps_of(number)[:steps]
        obs_BLO, action_BLA = _normalised(network, data, rows[None])
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


def _objective(
    model: WorldModel, config: WorldModelConfig, data: Play, episodes: np.ndarray
) -> Objective:
    training = config.training
    device = model.change.device
    lengths = (data.ends_E - data.starts_E)[episodes]
    cumulative = np.cumsum(lengths - config.sequence + 1)

    def batch(number: int) -> tuple[Tensor, Tensor]:
        flat_start = rng(training.seed, number).integers(cumulative[-1], size=training.batch_size)
        index = np.searchsorted(cumulative, flat_start, side="right")
        offset = flat_start - np.where(index > 0, cumulative[index - 1], 0)
        steps = (data.starts_E[episodes[index]] + offset)[:, None] + np.arange(config.sequence)
        obs_BLO, action_BLA = _normalised(model, data, steps)
        return obs_BLO.to(device), action_BLA.to(device)

    def loss(rows: tuple[Tensor, Tensor], number: int) -> Tensor:
        generator = torch.Generator(device).manual_seed(update_seed(training.seed, number))
        return likelihood_loss(
            model,
            *rows,
            generator,
            noise=config.noise,
            balance=config.kl_balance,
            weight=config.kl_weight,
            alone=config.alone,
        )

    return Objective(batch, loss)


def _train_classifier(
    model: WorldModel, config: WorldModelConfig, data: Play, out: Path, progress: Progress
) -> dict[str, float]:
    """Trains the success classifier on the latents after every action except the last of an
    episode; see `policies.rewards.train_success_classifier.train_success`."""
    latents = posterior(model, data, np.arange(len(data.ends_E)), config.training.seed)
    features = np.concatenate([latent.features[1:].numpy() for latent in latents])
    labelled = np.setdiff1d(np.arange(len(data.obs_MO)), data.ends_E - 1)
    lengths = data.ends_E - data.starts_E
    steps = LabelledSteps(
        fields={LATENT: features},
        success=data.success_M[labelled],
        episode=np.repeat(np.arange(len(lengths)), lengths - 1),
        # Play contains failures, like imagined rollouts, so its steps count as a policy's.
        by_policy=np.ones(len(labelled), bool),
        task=data.task,
        rate_hz=data.rate_hz,
        observation={LATENT: FieldSpec(shape=(model.features,), about="latent of the world model")},
    )
    out.mkdir(exist_ok=True)
    return train_success(config.success, steps, out, progress)


def _split(data: Play, config: WorldModelConfig) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the training episodes and of the held-out episodes."""
    count = len(data.ends_E)
    held_out = max(1, round(config.held_out * count))
    if held_out >= count:
        raise HandoffError(
            f"world model: {count} episodes of which {held_out} are held out, expected at least one for training."
        )
    order = np.random.default_rng(config.training.seed).permutation(count)
    return np.sort(order[held_out:]), np.sort(order[:held_out])


def _varies(data: Play) -> np.ndarray:
    """Mask (O,) of the entries that are not constant."""
    return data.obs_MO.std(axis=0) > 1e-6


def _normalised(model: WorldModel, data: Play, steps: np.ndarray) -> tuple[Tensor, Tensor]:
    """Normalised observations and actions of recorded steps, on the model's device."""
    observation, action = (
        torch.from_numpy(data.obs_MO[steps]),
        torch.from_numpy(data.action_MA[steps]),
    )
    device = model.change.device
    if device.type != "cpu":
        observation, action = observation.to(device), action.to(device)
    return model.normalize_observation(observation), model.normalize_action(action)
