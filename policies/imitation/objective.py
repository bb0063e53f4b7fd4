"""Imitation learning: data split, new policy, training loss and validation loss, for
`policies.imitation.pretrain`.

Statistics of the normalisers are computed while the stores are read, episode by episode. All
training episodes of all stores count equally: weights of stores and of episodes affect sampling,
not normalisation. An episode of weight 0 is treated as if its store did not have it: it is not
drawn, not held out, and not counted.

Shape suffixes: B batch, H horizon, A action, O observation, T steps of an episode, E episodes, N
windows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from policies.card import PolicyCard
from policies.data.demonstrations import (
    DemonstrationArrays,
    DemonstrationEpisode,
    OpenStore,
    check_agreement,
    open_store,
    read_stores,
)
from policies.data.frames import FrameSource, FrameStorage
from policies.data.mixture import MixedWindows, new_mixture
from policies.data.stored_maps import with_stored_maps
from policies.data.windows import (
    Windows,
    chunks,
    episode_windows,
    gather_frames,
    shortest_episode,
    window_index,
)
from policies.imitation.auxiliary_loss import AuxiliaryLoss
from policies.imitation.config import PretrainConfig
from policies.imitation.end_prediction import EndPrediction, with_end_prediction
from policies.imitation.field_dropout import FieldDropout
from policies.imitation.field_estimation import FieldEstimation, with_field_estimation
from policies.imitation.initial_weights import check_initial, load_initial_weights
from policies.load import new_module
from policies.networks.observation_encoder import ObservationEncoder
from policies.normalize import MinMaxStatistics, MomentStatistics
from policies.policy import Batch, ChunkPolicy
from policies.policy_config import PolicyConfig
from policies.random_streams import STORE_SPACING, RandomStream
from policies.training.batch_workers import BatchWorkers
from policies.training.loop import Objective, autocast, rng
from robots.episodes.curation.weights import store_weights
from robots.errors import HandoffError
from robots.interfaces import Progress, no_progress


class WindowSplit(NamedTuple):
    """Normalised training windows and held-out windows."""

    train: Windows
    held_out: Windows


class DataStatistics:
    """Running statistics of the data: ranges of observations and points, moments of chunks and last
    observations."""

    def __init__(self, card: PolicyCard) -> None:
        """Starts empty, with the sizes of the policy of `card`."""
        sizes = card.model
        self.observation = MinMaxStatistics(card.observation_size)
        self.points = {
            name: MinMaxStatistics(card.sensors[name].shape[-1]) for name in sizes.point_fields
        }
        self.chunks = MomentStatistics((sizes.horizon, card.action_size))
        self.last = MomentStatistics((card.observation_size,))
        self._window = sizes.window
        self._anchor = card.anchor

    def update(self, episode: DemonstrationEpisode) -> None:
        """Adds an episode.

        Raises:
            HandoffError: a value is not finite.
        """
        self.observation.update(episode.observation_TO)
        self.last.update(episode.observation_TO[-1:])
        for name, points in episode.points.items():
            self.points[name].update(points.reshape(-1, points.shape[-1]))
        index = episode_windows(len(episode.action_TA), *self._window)
        self.chunks.update(chunks(index, episode.observation_TO, episode.action_TA, self._anchor))


class TrainingSetup(NamedTuple):
    """An untrained policy and its training data."""

    module: ChunkPolicy
    card: PolicyCard
    split: WindowSplit
    mixture: MixedWindows
    """Mixture of the training windows."""
    stores: tuple[str, ...]
    """Name of every store of the mixture."""
    short_episodes: int
    """Episodes for training that have no window, as they are shorter than a chunk needs."""
    ending: EndPrediction | None = None
    """Predictor of the episode's end that is trained with the policy; None without one."""
    estimation: FieldEstimation | None = None
    """Error of the policy's estimates; None for a policy that estimates nothing."""

    @property
    def auxiliary(self) -> tuple[AuxiliaryLoss, ...]:
        """What is learned beside the actions."""
        return tuple(part for part in (self.ending, self.estimation) if part is not None)


def prepare(
    config: PretrainConfig,
    demos: Path,
    storage: FrameStorage,
    device: torch.device,
    progress: Progress = no_progress,
) -> TrainingSetup:
    """Reads all stores once and builds the policy on `device`.

    Args:
        config: policy, training options and additional stores.
        demos: directory with the first `store.zarr`, which the others must match.
        storage: storage of images and point clouds.
        device: device of the policy and the windows.
        progress: counts pictures while a frozen trunk computes their feature maps.

    Raises:
        HandoffError: unusable stores, stores that do not match, or incompatible initial weights.
    """
    seed = config.training.seed
    stores = [open_store(str(demos), demos / "store.zarr", config.policy)]
    # With the names of recorded fields in place of patterns.
    sizes = stores[0].card.model
    for mixed in config.mixture:
        stores.append(open_store(mixed.path, mixed.store, sizes))
        check_agreement(stores[0], stores[-1])
    card, statistics = stores[0].card, DataStatistics(stores[0].card)
    initial = None if config.initial is None else Path(config.initial)
    if initial is not None:
        check_initial(card, initial)
    weights = [store_weights(store.name, store.episodes) for store in stores]
    weight_E = np.concatenate(weights)
    held_out = _held_out(weights, config.validation_fraction, seed)
    training = np.setdiff1d(np.flatnonzero(weight_E), held_out)
    short = _short_episodes(stores, training)
    learned = set(training.tolist())

    def add_to_statistics(number: int, episode: DemonstrationEpisode) -> None:
        if number in learned:
            statistics.update(episode)

    data = read_stores(stores, storage, add_to_statistics, streamed=config.frames == "stream")
    module = untrained_policy(card, seed, initial)
    fit_normalizers(module, statistics, data, training)
    if initial is not None:
        load_initial_weights(module, initial, config.keep_normalizers)
    maps = with_stored_maps(module.to(device), data.sensors, storage, progress)
    data = data._replace(sensors=maps)
    split = split_windows(data, training, held_out, module, sizes)
    end_N = window_index(data.ends_E, *sizes.window).select(training).end_N
    train, ending = with_end_prediction(
        module, split.train, end_N, config.predict_end, card.shapes.entries, seed
    )
    train, estimation = with_field_estimation(
        module, train, stores, data, training, config.estimate_weight
    )
    split = split._replace(train=train)
    names = ("demos", *(mixed.path for mixed in config.mixture))
    window_weights = weights_of_windows(data, training, weight_E)
    mixture = new_mixture(
        names,
        tuple(map(len, window_weights)),
        (config.demos_weight, *(mixed.weight for mixed in config.mixture)),
        window_weights,
    )
    if mixture.groups:
        weight_N = np.concatenate(window_weights)
        split = split._replace(train=replace(split.train, weight_N=weight_N))
    return TrainingSetup(module, data.card, split, mixture, names, short, ending, estimation)


def _short_episodes(stores: Sequence[OpenStore], training: np.ndarray) -> int:
    """Number of the `training` episodes that have no window.

    Raises:
        HandoffError: none has one.
    """
    card = stores[0].card
    fewest = shortest_episode(*card.model.window)
    length_E = np.concatenate(
        [np.diff(store.episodes.ends(card.model.stream), prepend=0) for store in stores]
    )[training]
    short = int((length_E < fewest).sum())
    if short == len(training):
        raise HandoffError(
            f"{stores[0].name}: all {short} episodes for training are shorter than {fewest} steps (the longest has "
            f"{length_E.max(initial=0)}), which a window of a chunk of {card.model.horizon} with "
            f"{card.model.n_action_steps} executed actions needs. Lower policy.horizon."
        )
    return short


def held_out_episodes(count: int, fraction: float, seed: int, store: int = 0) -> np.ndarray:
    """Held-out episodes of store number `store`: `fraction` of its `count` episodes, rounded up,
    but never all."""
    number = min(count - 1, int(np.ceil(fraction * count)))
    generator = rng(seed, RandomStream.HELD_OUT + store * STORE_SPACING)
    return np.sort(generator.permutation(count)[:number])


def _held_out(weights: list[np.ndarray], fraction: float, seed: int) -> np.ndarray:
    """Held-out episodes of all stores, of those whose weight is above 0; numbered consecutively
    through the stores."""
    parts, first = [], 0
    for store, weight_E in enumerate(weights):
        drawn = np.flatnonzero(weight_E)
        parts.append(first + drawn[held_out_episodes(len(drawn), fraction, seed, store)])
        first += len(weight_E)
    return np.concatenate(parts)


def untrained_policy(card: PolicyCard, seed: int, saved: Path | None = None) -> ChunkPolicy:
    """A policy on the CPU with the initial weights of `seed`; its normalisers are not fitted.

    Args:
        card: card of the policy.
        seed: seed of the weights.
        saved: folder of the policy whose weights will be loaded, see `new_module`.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return new_module(card.model, card.shapes, saved)


def fit_normalizers(
    module: ChunkPolicy, statistics: DataStatistics, data: DemonstrationArrays, training: np.ndarray
) -> None:
    """Fits every normaliser of the policy to the `training` episodes.

    Args:
        module: the policy.
        statistics: statistics of the training episodes.
        data: all episodes; used only for quantiles, which cannot be computed incrementally.
        training: numbers of the training episodes.
    """

    def training_chunks() -> np.ndarray:
        index = window_index(data.ends_E, *data.card.model.window).select(training)
        return chunks(index, data.observation_MO, data.action_MA, module.anchor)

    module.normalize_observation.fit(statistics.observation)
    module.fit_action(statistics.chunks, training_chunks)
    module.fit_usual_goal(statistics.last)
    # Only the range matters, so the minimum and maximum replace all points.
    extremes = {
        name: np.stack([ranges.low, ranges.high])[None]
        for name, ranges in statistics.points.items()
    }
    for encoder in module.modules():
        if isinstance(encoder, ObservationEncoder):
            encoder.fit_sensors([extremes])


def split_windows(
    data: DemonstrationArrays,
    training: np.ndarray,
    held_out: np.ndarray,
    module: ChunkPolicy,
    sizes: PolicyConfig,
) -> WindowSplit:
    """Normalised windows of the episodes `training` and `held_out`, on the device of `module`."""
    observation_MO = module.normalize_observation(
        torch.from_numpy(data.observation_MO).to(module.device)
    )
    return WindowSplit(
        *(
            _windows(data, module, sizes, episodes, observation_MO)
            for episodes in (training, held_out)
        )
    )


def normalized_windows(
    data: DemonstrationArrays, module: ChunkPolicy, sizes: PolicyConfig, episodes: np.ndarray
) -> Windows:
    """Windows of `episodes`, normalised by the policy, on its device."""
    observation_MO = module.normalize_observation(
        torch.from_numpy(data.observation_MO).to(module.device)
    )
    return _windows(data, module, sizes, episodes, observation_MO)


def weights_of_windows(
    data: DemonstrationArrays, episodes: np.ndarray, weight_E: np.ndarray
) -> list[np.ndarray]:
    """The weight of the episode of every window of `episodes`, by store."""
    episode_N = window_index(data.ends_E, *data.card.model.window).select(episodes).episode_N
    store_N = data.store_E[episode_N]
    return [weight_E[episode_N[store_N == store]] for store in range(int(data.store_E[-1]) + 1)]


def imitation_objective(
    module: ChunkPolicy,
    windows: Windows,
    batch_size: int,
    seed: int,
    precision: str,
    mixture: MixedWindows | None = None,
    workers: BatchWorkers | None = None,
    dropout: FieldDropout | None = None,
    auxiliary: Sequence[AuxiliaryLoss] = (),
) -> Objective[Batch]:
    """The family's training loss on the batch of each update.

    Args:
        module: policy in training.
        windows: normalised windows on its device.
        batch_size: windows per update.
        seed: seed of data order, noise and other randomness of the loss.
        precision: `bf16` or `fp32`.
        mixture: division of the windows among stores; by default a single store.
        workers: processes that decode batches; by default this process does.
        dropout: observation fields that are hidden now and then; by default none.
        auxiliary: losses that are added; by default none.
    """
    mixture = mixture or MixedWindows((len(windows),), (1.0,))
    hide = dropout or FieldDropout(())
    batches = ImitationBatches(windows, mixture, batch_size, seed, workers)

    def loss(batch: Batch, step: int) -> Tensor:
        vector_BTO = hide(batch.obs.vector_BTO, rng(seed, RandomStream.FIELD_DROPOUT + step))
        batch = batch._replace(obs=batch.obs._replace(vector_BTO=vector_BTO))
        with ExitStack() as context:
            for part in auxiliary:
                context.enter_context(part.listening())
            with autocast(precision, module.device):
                imitation = module.loss(batch, rng(seed, step))
            return sum((part.loss(batch) for part in auxiliary), imitation)

    return Objective(batches, loss)


class DecodedRows(NamedTuple):
    """Decoded frames of the windows of one update."""

    windows_B: Tensor
    frames: Mapping[str, Tensor]
    goals: np.random.Generator | None
    """Random generator of the goals; None for policies without future goals."""


class RowDecoder(NamedTuple):
    """Chooses the windows of an update and reads their frames, on the CPU and in any process."""

    observation_NT: Tensor
    sensors: Mapping[str, FrameSource]
    mixture: MixedWindows
    size: int
    """Windows per update."""
    seed: int
    """Seed of the data order and of the goals."""
    future_goals: bool
    pinned: bool = False
    """Whether frames are read into pinned memory."""

    def __call__(self, step: int) -> DecodedRows:
        """The rows of update number `step`.

        Raises:
            HandoffError: streamed frames cannot be read.
        """
        windows_B = torch.from_numpy(self.mixture.batch(self.size, step, self.seed))
        goals = rng(self.seed, RandomStream.GOAL + step) if self.future_goals else None
        frames = gather_frames(self.sensors, self.observation_NT[windows_B], self.pinned)
        return DecodedRows(windows_B, frames, goals)


class ImitationBatches:
    """Batch function of imitation learning; implements
    `policies.training.preflight.TwoStageBatch`."""

    def __init__(
        self,
        windows: Windows,
        mixture: MixedWindows,
        size: int,
        seed: int,
        workers: BatchWorkers | None = None,
    ) -> None:
        """Batches of `size` windows, in the data order of `seed`, decoded by `workers` or in this
        process."""
        self.windows = windows
        self._workers = workers
        pinned = workers is None and windows.chunk_NHA.device.type == "cuda"
        self._decoder = RowDecoder(
            windows.observation_NT,
            windows.sensors,
            mixture,
            size,
            seed,
            windows.goal_end_N is not None,
            pinned,
        )

    def __call__(self, step: int) -> Batch:
        """The batch of update number `step`."""
        return self.collate(self.decode(step))

    def decode(self, step: int) -> DecodedRows:
        """Chooses the windows of update number `step` and reads their frames."""
        if self._workers is None:
            return self._decoder(step)
        return self._workers.rows(self._decoder, step)

    def collate(self, rows: DecodedRows) -> Batch:
        """Builds the batch on the device."""
        return self.windows.batch(rows.windows_B, rows.goals, rows.frames)


def _windows(
    data: DemonstrationArrays,
    module: ChunkPolicy,
    sizes: PolicyConfig,
    episodes: np.ndarray,
    observation_MO: Tensor,
) -> Windows:
    """Windows of `episodes` over observations that are already normalised."""
    index = window_index(data.ends_E, *sizes.window).select(episodes)
    chunk_NHA = torch.from_numpy(chunks(index, data.observation_MO, data.action_MA, module.anchor))
    executed_NHA = None
    if data.executed_MA is not None:
        made = chunks(index, data.observation_MO, data.executed_MA, module.anchor)
        executed_NHA = module.normalize_action(torch.from_numpy(made).to(module.device))
    return Windows(
        observation_MO,
        torch.from_numpy(index.observation_NT),
        module.normalize_action(chunk_NHA.to(module.device)),
        torch.from_numpy(index.padded_NH).to(module.device),
        data.sensors,
        tuple(data.instruction_M[step] for step in index.observation_NT[:, -1])
        if data.instruction_M
        else (),
        torch.from_numpy(index.end_N) if sizes.uses_future_goal else None,
        executed_NHA=executed_NHA,
    )
