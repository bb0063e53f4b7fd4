"""Imitation learning: data split, new policy, training loss and validation loss, for
`policies.imitation.pretrain`.

Statistics of the normalisers are computed while the stores are read, episode by episode. All
training episodes of all stores count equally: a store's weight affects sampling, not normalisation.

Shape suffixes: B batch, H horizon, A action, O observation, T steps of an episode, E episodes, N
windows.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from policies.card import PolicyCard
from policies.checkpoint import read_card, read_weights
from policies.data.demonstrations import (
    DemonstrationArrays,
    DemonstrationEpisode,
    check_agreement,
    open_store,
    read_stores,
)
from policies.data.frames import FrameStorage
from policies.data.mixture import MixedWindows, new_mixture
from policies.data.windows import Windows, chunks, episode_windows, window_index
from policies.imitation.config import PretrainConfig
from policies.load import new_module
from policies.networks.observation_encoder import ObservationEncoder
from policies.normalize import MinMaxStatistics, MomentStatistics
from policies.policy import Batch, ChunkPolicy
from policies.policy_config import PolicyConfig
from policies.random_streams import STORE_SPACING, RandomStream
from policies.training.loop import Objective, autocast, rng
from robots.errors import HandoffError

_VALIDATION_DRAWS = 4
"""Noise samples per held-out window."""
_VALIDATION_ROWS = 256
"""Rows per forward pass."""


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


def prepare(
    config: PretrainConfig, demos: Path, storage: FrameStorage, device: torch.device
) -> TrainingSetup:
    """Reads all stores once and builds the policy on `device`.

    Args:
        config: policy, training options and additional stores.
        demos: directory with the first `store.zarr`, which the others must match.
        storage: storage of images and point clouds.
        device: device of the policy and the windows.

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
    held_out = _held_out(
        [store.episodes.num_episodes for store in stores], config.validation_fraction, seed
    )
    excluded = set(held_out.tolist())

    def add_to_statistics(number: int, episode: DemonstrationEpisode) -> None:
        if number not in excluded:
            statistics.update(episode)

    data = read_stores(stores, storage, add_to_statistics)
    module = untrained_policy(card, seed, initial)
    fit_normalizers(module, statistics, data, held_out)
    if initial is not None:
        load_initial_weights(module, initial, config.keep_normalizers)
    split = split_windows(data, held_out, module.to(device), sizes)
    names = ("demos", *(mixed.path for mixed in config.mixture))
    counts = windows_per_store(data, np.setdiff1d(np.arange(len(data.ends_E)), held_out))
    weights = (config.demos_weight, *(mixed.weight for mixed in config.mixture))
    return TrainingSetup(module, data.card, split, new_mixture(names, counts, weights), names)


def held_out_episodes(count: int, fraction: float, seed: int, store: int = 0) -> np.ndarray:
    """Held-out episodes of store number `store`: `fraction` of its `count` episodes, rounded up,
    but never all."""
    number = min(count - 1, int(np.ceil(fraction * count)))
    generator = rng(seed, RandomStream.HELD_OUT + store * STORE_SPACING)
    return np.sort(generator.permutation(count)[:number])


def _held_out(counts: list[int], fraction: float, seed: int) -> np.ndarray:
    """Held-out episodes of all stores, numbered consecutively through the stores."""
    firsts = np.cumsum([0, *counts])
    parts = [
        first + held_out_episodes(count, fraction, seed, store)
        for store, (first, count) in enumerate(zip(firsts[:-1], counts, strict=True))
    ]
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
    module: ChunkPolicy, statistics: DataStatistics, data: DemonstrationArrays, held_out: np.ndarray
) -> None:
    """Fits every normaliser of the policy to the episodes that are not `held_out`.

    Args:
        module: the policy.
        statistics: statistics of the training episodes.
        data: all episodes; used only for quantiles, which cannot be computed incrementally.
        held_out: numbers of the held-out episodes.
    """

    def training_chunks() -> np.ndarray:
        training_episodes = np.setdiff1d(np.arange(len(data.ends_E)), held_out)
        index = window_index(data.ends_E, *data.card.model.window).select(training_episodes)
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


def check_initial(card: PolicyCard, initial: Path) -> None:
    """Checks that a policy of `card` can start from the weights of the saved policy in the
    directory `initial`.

    Raises:
        HandoffError: no policy in the directory, or one of another family or anchor.
    """
    saved = read_card(initial)
    if saved.model.kind != card.model.kind:
        raise HandoffError(
            f"{initial}: a policy of family '{saved.model.kind}', expected '{card.model.kind}'."
        )
    if saved.anchor != card.anchor:
        raise HandoffError(
            f"{initial}: its actions are relative to '{saved.model.anchor_field}' (entry {saved.anchor}), expected "
            f"'{card.model.anchor_field}' (entry {card.anchor})."
        )


def load_initial_weights(module: ChunkPolicy, initial: Path, keep_normalizers: bool) -> None:
    """Loads the weights of the saved policy in the directory `initial`.

    Args:
        module: policy with fitted normalisers.
        initial: folder of a policy of the same family and shapes.
        keep_normalizers: whether to load its normalisers too; with other normalisers the inputs of
            the network change.

    Raises:
        HandoffError: no weights in the directory, or weights of another shape.
    """
    weights, initialised = read_weights(initial), module.state_dict()
    for name in sorted(initialised.keys() | weights.keys()):
        saved_shape = tuple(weights[name].shape) if name in weights else "absent"
        expected_shape = tuple(initialised[name].shape) if name in initialised else "absent"
        if saved_shape != expected_shape:
            raise HandoffError(
                f"{initial}: '{name}' is {saved_shape}, expected {expected_shape}. Do the sizes of both agree?"
            )
    loaded = {
        name: weight
        for name, weight in weights.items()
        if keep_normalizers or "normalize_" not in name
    }
    module.load_state_dict(initialised | loaded)


def split_windows(
    data: DemonstrationArrays, held_out: np.ndarray, module: ChunkPolicy, sizes: PolicyConfig
) -> WindowSplit:
    """Normalised training and held-out windows of `data`, on the device of `module`."""
    training_episodes = np.setdiff1d(np.arange(len(data.ends_E)), held_out)
    observation_MO = module.normalize_observation(
        torch.from_numpy(data.observation_MO).to(module.device)
    )
    return WindowSplit(
        *(
            _windows(data, module, sizes, episodes, observation_MO)
            for episodes in (training_episodes, held_out)
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


def windows_per_store(data: DemonstrationArrays, episodes: np.ndarray) -> tuple[int, ...]:
    """Number of windows of `episodes` in every store."""
    index = window_index(data.ends_E, *data.card.model.window).select(episodes)
    return tuple(
        np.bincount(data.store_E[index.episode_N], minlength=int(data.store_E[-1]) + 1).tolist()
    )


def imitation_objective(
    module: ChunkPolicy,
    windows: Windows,
    batch_size: int,
    seed: int,
    precision: str,
    mixture: MixedWindows | None = None,
) -> Objective[Batch]:
    """The family's training loss on the batch of each update.

    Args:
        module: policy in training.
        windows: normalised windows on its device.
        batch_size: windows per update.
        seed: seed of data order, noise and other randomness of the loss.
        precision: `bf16` or `fp32`.
        mixture: division of the windows among stores; by default a single store.
    """
    batches = ImitationBatches(
        windows, mixture or MixedWindows((len(windows),), (1.0,)), batch_size, seed
    )

    def loss(batch: Batch, step: int) -> Tensor:
        with autocast(precision, module.device):
            return module.loss(batch, rng(seed, step))

    return Objective(batches, loss)


class DecodedRows(NamedTuple):
    """Decoded frames of the windows of one update."""

    windows_B: Tensor
    frames: Mapping[str, Tensor]
    goals: np.random.Generator | None
    """Random generator of the goals; None for policies without future goals."""


class ImitationBatches:
    """Batch function of imitation learning; implements
    `policies.training.preflight.TwoStageBatch`."""

    def __init__(self, windows: Windows, mixture: MixedWindows, size: int, seed: int) -> None:
        """Batches of `size` windows, in the data order of `seed`."""
        self.windows = windows
        self.mixture = mixture
        self.size = size
        self.seed = seed

    def __call__(self, step: int) -> Batch:
        """The batch of update number `step`."""
        return self.collate(self.decode(step))

    def decode(self, step: int) -> DecodedRows:
        """Chooses the windows of update number `step` and reads their frames."""
        windows_B = torch.from_numpy(self.mixture.batch(self.size, step, self.seed))
        goals = (
            None if self.windows.goal_end_N is None else rng(self.seed, RandomStream.GOAL + step)
        )
        return DecodedRows(windows_B, self.windows.frames(windows_B), goals)

    def collate(self, rows: DecodedRows) -> Batch:
        """Builds the batch on the device."""
        return self.windows.batch(rows.windows_B, rows.goals, rows.frames)


@torch.no_grad()
def validation_loss(module: ChunkPolicy, windows: Windows, seed: int) -> float:
    """Loss on held-out windows, each with several noise samples, in fp32 and without dropout or
    random crops."""
    was_training = module.training
    module.eval()
    window_N = torch.arange(len(windows)).repeat(_VALIDATION_DRAWS)
    total = 0.0
    for number, windows_B in enumerate(window_N.split(_VALIDATION_ROWS)):
        batch = windows.batch(windows_B, rng(seed, RandomStream.VALIDATION_GOAL + number))
        error = module.loss(batch, rng(seed, RandomStream.VALIDATION + number))
        total += float(error) * len(windows_B)
    module.train(was_training)
    return total / len(window_N)


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
    return Windows(
        observation_MO,
        torch.from_numpy(index.observation_NT),
        module.normalize_action(chunk_NHA.to(module.device)),
        torch.from_numpy(index.padded_NH).to(module.device),
        data.sensors,
        tuple(data.instruction_E[episode] for episode in index.episode_N)
        if data.instruction_E
        else (),
        torch.from_numpy(index.end_N) if sizes.uses_future_goal else None,
    )
