"""From a store of play to a frozen world model, with the classifier of success on its latents, and
how exact it is.

What is judged is what dreams are made of: episodes that were held out are imagined from a recorded
state with the recorded actions, and compared with what was recorded, field by field, beside the
guess that nothing changes.

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
from policies.rewards.train_success_classifier import LabelledSteps, train_success
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
    LEAST_CHANGE,
    Latent,
    WorldModel,
    as_fields,
    close_ups_of,
    likelihood_loss,
    load_world_model,
    save_world_model,
)
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import Observation, Progress
from robots.spec import FieldSpec

SUCCESS = "success"
"""Folder of the classifier, in the model's."""
STILL = 1e-3
"""Deviation of a step's change up to which an entry counts as one that never changes within an
episode [normalised]."""
BESIDE = 256
"""Sequences that are imagined together."""
LOOKED_AT = 4000
"""States from which held-out play is imagined, at most."""


class Play(NamedTuple):
    """M recorded steps of E episodes."""

    seen_MO: np.ndarray
    action_MA: np.ndarray
    ends_E: np.ndarray
    success_M: np.ndarray
    """bool, behind the action."""
    observation: dict[str, FieldSpec]
    action: FieldSpec
    task: str
    rate_hz: float

    @property
    def starts_E(self) -> np.ndarray:
        """First step of every episode."""
        return np.concatenate([[0], self.ends_E[:-1]])

    def rows_of(self, episode: int, before_end: int = 0) -> np.ndarray:
        """Its steps, but for the last `before_end`."""
        return np.arange(int(self.starts_E[episode]), int(self.ends_E[episode]) - before_end)

    def digest(self) -> str:
        """Hex sha256."""
        found = hashlib.sha256(repr((self.task, self.rate_hz, self.observation)).encode())
        for values in (self.seen_MO, self.action_MA, self.ends_E, self.success_M):
            found.update(np.ascontiguousarray(values).tobytes())
        return found.hexdigest()


def read_play(path: Path, config: WorldModelConfig) -> Play:
    """Reads the store at `path`.

    Raises:
        HandoffError: no store, fields that are not there or are pictures, no label of success, an
            episode that is shorter than a sequence, or a value that is not finite.
    """
    store = EpisodeStore.open(path)
    stream = store.schema.stream(config.stream)
    label = config.success.classifier.label_field
    asked = (*config.fields, config.action_field, label)
    missing = [name for name in asked if name not in stream.fields]
    if missing or not config.fields:
        raise HandoffError(
            f"world model: fields {list(config.fields)}, of which with action and label {missing} are missing in "
            f"{path}; stream '{config.stream}' has {sorted(stream.fields)}."
        )
    if pictures := [name for name in config.fields if stream.fields[name].unit == "u8"]:
        raise HandoffError(f"world model: {pictures} are pictures, expected vectors.")
    ends = store.ends(config.stream)
    shortest = int(np.diff(ends, prepend=0).min()) if len(ends) else 0
    if shortest < config.sequence:
        raise HandoffError(
            f"world model: {len(ends)} episodes, the shortest of {shortest} steps, expected at least one "
            f"and none shorter than a sequence of {config.sequence}."
        )
    columns = {name: store.column(config.stream, name).reshape(ends[-1], -1) for name in asked}
    if broken := [name for name, values in columns.items() if not np.isfinite(values).all()]:
        raise HandoffError(f"{path}: fields {broken} are not finite everywhere. Was a sensor lost?")
    return Play(
        seen_MO=np.concatenate([columns[name] for name in config.fields], axis=1).astype(
            np.float32
        ),
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
    """Trains on `play/store.zarr` and writes model, classifier, curve and a picture to `out`.

    Args:
        config: what and how.
        play: folder of the store.
        out: folder; goes on from what a killed run left there.
        progress: told every update.

    Returns:
        Metrics: loss, cpu_seconds, `error` (per horizon, imagined less recorded, in deviations of
        the field, root mean square over fields), `stays` (the same of the guess that nothing
        changes), `errors` (per horizon and field, in its own unit), `success` (of the classifier,
        see `policies.rewards.train_success_classifier.metrics`), steps and parameters.

    Raises:
        HandoffError: unusable play, a loss that is not finite, or no classifier that is precise
            enough.
    """
    training = config.training
    device = resolve_device(training.device)
    precision = resolve_precision(training.precision, device)
    data = read_play(play / "store.zarr", config)
    learned, held = _split(data, config)
    with torch_threads(training.threads):
        model = new_world_model(config, data, learned).to(device)
        objective = _objective(model, config, data, learned)
        identity = job_identity(config, data.digest(), precision, device)
        trained = train(training, model, objective, identity, out, progress, precision=precision)
        model.load_state_dict(trained.average)
        model.requires_grad_(False).eval().cpu()
        draw_curve(out, "world model")
        report = open_loop(model, data, held, config.horizons, training.seed)
        told = _train_classifier(model, config, data, out / SUCCESS, progress)
    card = WorldModelCard(
        task=data.task,
        rate_hz=data.rate_hz,
        observation=data.observation,
        action=data.action,
        action_low=tuple(data.action_MA.min(axis=0).tolist()),
        action_high=tuple(data.action_MA.max(axis=0).tolist()),
        close_ups=config.close_ups,
        sizes=config.sizes,
        threshold=told["threshold"],
        training_data=data.digest(),
    )
    save_world_model(out, card, model, torch.from_numpy(data.seen_MO[data.starts_E]))
    (out / STATE).unlink()
    return {
        "loss": trained.loss,
        "cpu_seconds": round(trained.cpu_seconds, 1),
        **report,
        "success": told,
        "steps": len(data.seen_MO),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


def new_world_model(config: WorldModelConfig, data: Play, episodes: np.ndarray) -> WorldModel:
    """With new weights, and the scales of the steps of some episodes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.training.seed)
        close_ups = close_ups_of(data.observation, config.close_ups)
        model = WorldModel(data.seen_MO.shape[1], data.action_MA.shape[1], config.sizes, close_ups)
    rows = np.concatenate([data.rows_of(number) for number in episodes])
    model.normalize_observation.fit(data.seen_MO[rows])
    model.normalize_action.fit(data.action_MA[rows])
    inner = np.setdiff1d(rows, data.ends_E - 1)
    scale = model.normalize_observation.scale.numpy()
    statistics = MomentStatistics((data.seen_MO.shape[1],))
    statistics.update((data.seen_MO[inner + 1] - data.seen_MO[inner]) / scale)
    model.change.copy_(torch.from_numpy(np.maximum(statistics.deviation, LEAST_CHANGE)))
    model.moves.copy_(torch.from_numpy(statistics.deviation > STILL))
    return model


def posterior(model: WorldModel, data: Play, episodes: np.ndarray, seed: int) -> list[Latent]:
    """Of every episode the latents at its steps, each as one `Latent` of so many rows."""
    draw = torch.Generator().manual_seed(seed)
    found: list[Latent] = []
    for first in range(0, len(episodes), BESIDE):
        some = episodes[first : first + BESIDE]
        starts, lengths = data.starts_E[some], (data.ends_E - data.starts_E)[some]
        steps = np.minimum(np.arange(lengths.max()), lengths[:, None] - 1) + starts[:, None]
        seen_BLO, action_BLA = _normalised(model, data, steps)
        with torch.no_grad():
            latents = [model.begin(seen_BLO[:, 0], model.gumbel(len(some), draw))]
            for step in range(1, steps.shape[1]):
                noise_BZ = model.gumbel(len(some), draw)
                latents.append(
                    model.observe(latents[-1], action_BLA[:, step - 1], seen_BLO[:, step], noise_BZ)
                )
        columns = [torch.stack(parts, dim=1) for parts in zip(*latents, strict=True)]
        for row, length in enumerate(lengths):
            found.append(Latent(*(column[row, :length] for column in columns)))
    return found


def open_loop(
    model: WorldModel, data: Play, episodes: np.ndarray, horizons: tuple[int, ...], seed: int
) -> dict[str, Any]:
    """Imagined less recorded, from states of these episodes with the recorded actions; see
    `train_world_model`."""
    longest = max(horizons)
    firsts = np.concatenate(
        [data.rows_of(number, longest)[:: max(1, longest // 10)] for number in episodes]
    )
    if not len(firsts):
        raise HandoffError(
            f"world model: no held-out episode is longer than the longest horizon of {longest} steps."
        )
    firsts = np.random.default_rng(seed).permutation(firsts)[:LOOKED_AT]
    draw = torch.Generator().manual_seed(seed)
    squares: dict[int, list[np.ndarray]] = {horizon: [] for horizon in horizons}
    still: dict[int, list[np.ndarray]] = {horizon: [] for horizon in horizons}
    for begin in range(0, len(firsts), BESIDE):
        steps = firsts[begin : begin + BESIDE, None] + np.arange(longest + 1)
        seen_BLO, action_BLA = _normalised(model, data, steps)
        with torch.no_grad():
            latent = model.begin(seen_BLO[:, 0], model.gumbel(len(steps), draw))
            for step in range(1, longest + 1):
                latent = model.imagine(
                    latent, action_BLA[:, step - 1], model.gumbel(len(steps), draw)
                )
                if step in squares:
                    squares[step].append((latent.seen_BO - seen_BLO[:, step]).square().numpy())
                    still[step].append((seen_BLO[:, 0] - seen_BLO[:, step]).square().numpy())
    scale, varies = model.normalize_observation.scale.numpy(), _varies(data)
    report: dict[str, Any] = {"error": {}, "stays": {}, "errors": {}}
    for horizon in horizons:
        mean_O = np.concatenate(squares[horizon]).mean(axis=0)
        # The normaliser's unit is two deviations.
        report["error"][str(horizon)] = float(2.0 * np.sqrt(mean_O[varies].mean()))
        report["stays"][str(horizon)] = float(
            2.0 * np.sqrt(np.concatenate(still[horizon]).mean(axis=0)[varies].mean())
        )
        own, end = {}, 0
        for name, spec in data.observation.items():
            part = slice(end, end + prod(spec.shape))
            own[name] = float(np.sqrt((mean_O[part] * scale[part] ** 2).mean()))
            end = part.stop
        report["errors"][str(horizon)] = own
    return report


class Imagined(NamedTuple):
    """Held-out episodes, each recorded and imagined from its first step with its actions."""

    task: str
    rate_hz: float
    episodes: list[tuple[Observation, Observation]]
    """Per field (T, ...)."""


def imagine_held_out(
    model: Path, config: WorldModelConfig, play: Path, episodes: int, steps: int
) -> Imagined:
    """Imagines the first `steps` steps of the first held-out episodes.

    Args:
        model: folder of the world model.
        config: with which it was trained.
        play: folder of the store on which it was.
        episodes: how many, as far as there are.
        steps: how many, as far as they go.
    """
    network, card, _ = load_world_model(model)
    data = read_play(play / "store.zarr", config)
    _, held = _split(data, config)
    found = []
    for number in held[:episodes]:
        rows = data.rows_of(number)[:steps]
        seen_BLO, action_BLA = _normalised(network, data, rows[None])
        draw = torch.Generator().manual_seed(int(number))
        with torch.no_grad():
            latent = network.begin(seen_BLO[:, 0], network.gumbel(1, draw))
            estimates = [latent.seen_BO]
            for step in range(1, len(rows)):
                latent = network.imagine(latent, action_BLA[:, step - 1], network.gumbel(1, draw))
                estimates.append(latent.seen_BO)
        imagined_TO = network.normalize_observation.inverse(torch.cat(estimates)).numpy()
        found.append(
            (
                as_fields(card.observation, data.seen_MO[rows]),
                as_fields(card.observation, imagined_TO),
            )
        )
    return Imagined(data.task, data.rate_hz, found)


def _objective(
    model: WorldModel, config: WorldModelConfig, data: Play, episodes: np.ndarray
) -> Objective:
    training = config.training
    device = model.change.device
    lengths = (data.ends_E - data.starts_E)[episodes]
    share = np.cumsum(lengths - config.sequence + 1)

    def batch(number: int) -> tuple[Tensor, Tensor]:
        chosen = rng(training.seed, number).integers(share[-1], size=training.batch_size)
        which = np.searchsorted(share, chosen, side="right")
        offset = chosen - np.where(which > 0, share[which - 1], 0)
        steps = (data.starts_E[episodes[which]] + offset)[:, None] + np.arange(config.sequence)
        seen_BLO, action_BLA = _normalised(model, data, steps)
        return seen_BLO.to(device), action_BLA.to(device)

    def loss(rows: tuple[Tensor, Tensor], number: int) -> Tensor:
        draw = torch.Generator(device).manual_seed(update_seed(training.seed, number))
        return likelihood_loss(
            model,
            *rows,
            draw,
            noise=config.noise,
            balance=config.kl_balance,
            weight=config.kl_weight,
            alone=config.alone,
        )

    return Objective(batch, loss)


def _train_classifier(
    model: WorldModel, config: WorldModelConfig, data: Play, out: Path, progress: Progress
) -> dict[str, float]:
    """Of latents behind every action but the last of an episode; see
    `policies.rewards.train_success_classifier.train_success`."""
    latents = posterior(model, data, np.arange(len(data.ends_E)), config.training.seed)
    features = np.concatenate([one.features[1:].numpy() for one in latents])
    labelled = np.setdiff1d(np.arange(len(data.seen_MO)), data.ends_E - 1)
    lengths = data.ends_E - data.starts_E
    steps = LabelledSteps(
        fields={LATENT: features},
        success=data.success_M[labelled],
        episode=np.repeat(np.arange(len(lengths)), lengths - 1),
        # As what is made in dreams is: by no expert, and with failures.
        by_policy=np.ones(len(labelled), bool),
        task=data.task,
        rate_hz=data.rate_hz,
        observation={LATENT: FieldSpec(shape=(model.features,), about="latent of the world model")},
    )
    out.mkdir(exist_ok=True)
    return train_success(config.success, steps, out, progress)


def _split(data: Play, config: WorldModelConfig) -> tuple[np.ndarray, np.ndarray]:
    """Episodes to learn from, and to judge by."""
    count = len(data.ends_E)
    held = max(1, round(config.held_out * count))
    if held >= count:
        raise HandoffError(
            f"world model: {count} episodes of which {held} are held out, expected more to learn from."
        )
    order = np.random.default_rng(config.training.seed).permutation(count)
    return np.sort(order[held:]), np.sort(order[:held])


def _varies(data: Play) -> np.ndarray:
    """(O,) bool: entries that are not the same all the time."""
    return data.seen_MO.std(axis=0) > 1e-6


def _normalised(model: WorldModel, data: Play, steps: np.ndarray) -> tuple[Tensor, Tensor]:
    """Observations and actions of rows of recorded steps, on the CPU."""
    seen, action = torch.from_numpy(data.seen_MO[steps]), torch.from_numpy(data.action_MA[steps])
    device = model.change.device
    if device.type != "cpu":
        seen, action = seen.to(device), action.to(device)
    return model.normalize_observation(seen), model.normalize_action(action)
