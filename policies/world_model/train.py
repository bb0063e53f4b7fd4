"""Trains world models on play, each with a success classifier on its latents.

Shape suffixes as in `policies.world_model.model`; M recorded steps, E episodes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from policies.normalize import MomentStatistics
from policies.random_streams import update_seed
from policies.rewards.labelled_steps import LabelledSteps
from policies.rewards.success_files import CARD as CLASSIFIER_CARD
from policies.rewards.success_files import load_classifier
from policies.rewards.train_success_classifier import check_labels, train_success
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
from policies.training.members import member_folder, member_progress, member_seed
from policies.training.plots import draw_curve
from policies.world_model.config import LATENT, WorldModelCard, WorldModelConfig
from policies.world_model.ensemble import WorldModelEnsemble
from policies.world_model.held_out import BATCH_SIZE, check_held_out, compare_members, open_loop
from policies.world_model.model import (
    MIN_CHANGE,
    Latent,
    WorldModel,
    likelihood_loss,
    locate_scaled_features,
    save_world_model,
)
from policies.world_model.play import Play, normalised, read_play, split_play
from robots.interfaces import Progress
from robots.spec import FieldSpec

SUCCESS = "success"
"""Folder of the success classifier within the world model's folder."""
MIN_MOTION = 1e-3
"""Standard deviation of a step's change up to which an entry counts as constant within an episode
[normalised units]."""


def train_world_model(
    config: WorldModelConfig, play: Path, out: Path, progress: Progress
) -> dict[str, Any]:
    """Trains on `play/store.zarr` and writes model, classifier, loss curve and its plot to `out`;
    members after the first have folders of their own there.

    Args:
        config: options of model, training and classifier.
        play: folder of the store.
        out: folder of the model; an interrupted run is resumed from its checkpoint there.
        progress: called after every update.

    Returns:
        Metrics: loss, cpu_seconds, `error` (per horizon, root mean square error of imagined
        observations in standard deviations of the entries), `stays` (the same for the prediction
        that nothing changes), `errors` (per horizon and field, in the field's unit), `success` (of
        the classifier, see `policies.rewards.train_success_classifier.metrics`), members, steps and
        parameters; with several members `disagreement` (see
        `policies.world_model.held_out.compare_members`). Loss, errors and success are those of the
        first member.

    Raises:
        HandoffError: unusable play, among it one with too few successes for the classifier or too
            short for the horizons; a loss that is not finite; or no threshold with which the
            classifier is precise enough.
    """
    data = read_play(play / "store.zarr", config)
    _, held_out = split_play(data, config)
    check_held_out(data, held_out, config.horizons)
    check_labels(config.success, _labelled(data, {}, {}))
    trained = [
        _train_member(config, number, data, out, member_progress(progress, number, config.members))
        for number in range(config.members)
    ]
    draw_curve(out, "world model")
    models = WorldModelEnsemble([member.model for member in trained])
    first, training = trained[0], config.training
    with torch_threads(training.threads):
        report = open_loop(models.members[0], data, held_out, config.horizons, training.seed)
        if config.members > 1:
            report["disagreement"] = compare_members(
                models, data, held_out, max(config.horizons), training.seed
            )
    # Save the models; that of the first member, whose card says how many there are, last.
    starts = torch.from_numpy(data.obs_MO[data.starts_E])
    usual = report["disagreement"]["usual"] if config.members > 1 else 0.0
    for number, member in reversed(list(enumerate(trained))):
        card = _card(config, data, member.success["threshold"], usual)
        save_world_model(member_folder(out, number), card, member.model, starts)
    for number in range(config.members):
        (member_folder(out, number) / STATE).unlink()
    return {
        "loss": first.loss,
        "cpu_seconds": round(sum(member.cpu_seconds for member in trained), 1),
        **report,
        "success": first.success,
        "members": config.members,
        "steps": len(data.obs_MO),
        "parameters": sum(
            parameter.numel() for model in models.members for parameter in model.parameters()
        ),
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
        obs_BLO, action_BLA = normalised(model, data, steps)
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


class _Member(NamedTuple):
    """A trained member."""

    model: WorldModel
    loss: float
    cpu_seconds: float
    success: dict[str, float]
    """Metrics of its success classifier."""


def _train_member(
    config: WorldModelConfig, number: int, data: Play, out: Path, progress: Progress
) -> _Member:
    """Trains a member and its success classifier, or returns what an interrupted run has already
    trained; all members learn from the same episodes."""
    training = replace(config.training, seed=member_seed(config.training.seed, number))
    device = resolve_device(training.device)
    precision = resolve_precision(training.precision, device)
    episodes, _ = split_play(data, config)
    config = replace(config, training=training)
    folder = member_folder(out, number)
    folder.mkdir(exist_ok=True)
    with torch_threads(training.threads):
        model = new_world_model(config, data, episodes).to(device)
        objective = _objective(model, config, data, episodes)
        identity = job_identity(config, data.digest(), precision, device)
        trained = train(training, model, objective, identity, folder, progress, precision=precision)
        model.load_state_dict(trained.average)
        model.requires_grad_(False).eval().cpu()
        success = _train_classifier(model, config, data, folder / SUCCESS, progress)
    return _Member(model, trained.loss, trained.cpu_seconds, success)


def _card(
    config: WorldModelConfig, data: Play, threshold: float, usual_disagreement: float
) -> WorldModelCard:
    return WorldModelCard(
        task=data.task,
        rate_hz=data.rate_hz,
        observation=data.observation,
        action=data.action,
        action_low=tuple(data.action_MA.min(axis=0).tolist()),
        action_high=tuple(data.action_MA.max(axis=0).tolist()),
        scaled_features=config.scaled_features,
        sizes=config.sizes,
        threshold=threshold,
        members=config.members,
        usual_disagreement=usual_disagreement,
        training_data=data.digest(),
    )


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
        obs_BLO, action_BLA = normalised(model, data, steps)
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
    episode, unless an interrupted run has; see
    `policies.rewards.train_success_classifier.train_success`."""
    if (out / CLASSIFIER_CARD).exists():
        return load_classifier(out)[1].report
    latents = posterior(model, data, np.arange(len(data.ends_E)), config.training.seed)
    features = np.concatenate([latent.features[1:].numpy() for latent in latents])
    spec = FieldSpec(shape=(model.features,), about="latent of the world model")
    steps = _labelled(data, {LATENT: features}, {LATENT: spec})
    out.mkdir(exist_ok=True)

    def named(done: int, total: int, note: str = "") -> None:
        progress(done, total, ", ".join(filter(None, ["success classifier", note])))

    return train_success(config.success, steps, out, named)


def _labelled(
    data: Play, fields: dict[str, np.ndarray], observation: dict[str, FieldSpec]
) -> LabelledSteps:
    """The steps after every action except the last of an episode, with what a classifier observes
    of them."""
    labelled = np.setdiff1d(np.arange(len(data.obs_MO)), data.ends_E - 1)
    lengths = data.ends_E - data.starts_E
    return LabelledSteps(
        fields=fields,
        success=data.success_M[labelled],
        episode=np.repeat(np.arange(len(lengths)), lengths - 1),
        # Play contains failures, like imagined rollouts, so its steps count as a policy's.
        by_policy=np.ones(len(labelled), bool),
        task=data.task,
        rate_hz=data.rate_hz,
        observation=observation,
    )
