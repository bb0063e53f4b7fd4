"""Imitation: data split, new policy, training loss and validation loss. Torch side of
`policies.imitation.pretrain`.

Statistics for the normalisers are taken while the stores are read, episode by episode. They are
those of all learned episodes of all stores alike: a store's weight says how often it is learned
from, not in which units.

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
from policies.data.frames import FrameSpace
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
"""Times that each held-out window is tried, with other noise."""
_VALIDATION_ROWS = 256
"""Rows per pass."""


class WindowSplit(NamedTuple):
    """Normalised windows to learn from, and those held out."""

    learned: Windows
    held_out: Windows


class DataStatistics:
    """What is fitted to the data: ranges of the observations and points, moments of chunks and last
    steps."""

    def __init__(self, card: PolicyCard) -> None:
        """Of nothing yet, for the policy of that card."""
        sizes = card.model
        self.observed = MinMaxStatistics(card.observation_size)
        self.points = {
            name: MinMaxStatistics(card.sensors[name].shape[-1]) for name in sizes.point_fields
        }
        self.chunks = MomentStatistics((sizes.horizon, card.action_size))
        self.last = MomentStatistics((card.observation_size,))
        self._window = sizes.window
        self._anchor = card.anchor

    def update(self, episode: DemonstrationEpisode) -> None:
        """Takes an episode in.

        Raises:
            HandoffError: a value is not finite.
        """
        self.observed.update(episode.observation_TO)
        self.last.update(episode.observation_TO[-1:])
        for name, points in episode.points.items():
            self.points[name].update(points.reshape(-1, points.shape[-1]))
        index = episode_windows(len(episode.action_TA), *self._window)
        self.chunks.update(chunks(index, episode.observation_TO, episode.action_TA, self._anchor))


class Lesson(NamedTuple):
    """A policy before its first update, and what it learns from."""

    module: ChunkPolicy
    card: PolicyCard
    split: WindowSplit
    mixture: MixedWindows
    """Of the learned windows."""
    stores: tuple[str, ...]
    """Name of every store of the mixture."""


def prepare(config: PretrainConfig, demos: Path, space: FrameSpace, device: torch.device) -> Lesson:
    """Reads all stores once and builds the policy on `device`.

    Args:
        config: what to learn, from which further stores.
        demos: directory with the first `store.zarr`, by which the others are judged.
        space: where pictures go.
        device: of the policy and the windows.

    Raises:
        HandoffError: unusable stores, ones that do not agree, or weights to start from that do not
            fit.
    """
    sizes, seed = config.policy, config.training.seed
    stores = [open_store(str(demos), demos / "store.zarr", sizes)]
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
    kept_back = set(held_out.tolist())

    def learn(number: int, episode: DemonstrationEpisode) -> None:
        if number not in kept_back:
            statistics.update(episode)

    data = read_stores(stores, space, learn)
    module = untrained_policy(card, seed, initial)
    fit_normalizers(module, statistics, data, held_out)
    if initial is not None:
        start_from(module, initial, config.keep_normalizers)
    split = split_windows(data, held_out, module.to(device), sizes)
    names = ("demos", *(mixed.path for mixed in config.mixture))
    counts = windows_per_store(data, np.setdiff1d(np.arange(len(data.ends_E)), held_out))
    weights = (config.demos_weight, *(mixed.weight for mixed in config.mixture))
    return Lesson(module, data.card, split, new_mixture(names, counts, weights), names)


def held_out_episodes(count: int, fraction: float, seed: int, store: int = 0) -> np.ndarray:
    """Episodes of store number `store` kept from training: `fraction` of its `count`, rounded up,
    but never all."""
    number = min(count - 1, int(np.ceil(fraction * count)))
    draw = rng(seed, RandomStream.HELD_OUT + store * STORE_SPACING)
    return np.sort(draw.permutation(count)[:number])


def _held_out(counts: list[int], fraction: float, seed: int) -> np.ndarray:
    """The same of every store, with the numbers that episodes have through all stores."""
    firsts = np.cumsum([0, *counts])
    parts = [
        first + held_out_episodes(count, fraction, seed, store)
        for store, (first, count) in enumerate(zip(firsts[:-1], counts, strict=True))
    ]
    return np.concatenate(parts)


def untrained_policy(card: PolicyCard, seed: int, saved: Path | None = None) -> ChunkPolicy:
    """A policy on the CPU with the initial weights of `seed`; its normalisers are not fitted.

    Args:
        card: what it is to be.
        seed: of the weights.
        saved: folder of the policy whose weights it is to take over, see `new_module`.
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
        statistics: of those episodes.
        data: all episodes; looked at for quantiles alone, which have no running form.
        held_out: numbers of the episodes that do not count.
    """

    def learned_chunks() -> np.ndarray:
        learned = np.setdiff1d(np.arange(len(data.ends_E)), held_out)
        index = window_index(data.ends_E, *data.card.model.window).of(learned)
        return chunks(index, data.observation_MO, data.action_MA, module.anchor)

    module.normalize_observation.fit(statistics.observed)
    module.fit_action(statistics.chunks, learned_chunks)
    module.fit_usual_goal(statistics.last)
    # Ranges are all that is taken over, so one step with the two extreme points stands for all
    # episodes.
    extremes = {
        name: np.stack([seen.low, seen.high])[None] for name, seen in statistics.points.items()
    }
    for part in module.modules():
        if isinstance(part, ObservationEncoder):
            part.fit_sensors([extremes])


def check_initial(card: PolicyCard, initial: Path) -> None:
    """Checks that a policy of `card` may take over the weights of the saved one in the directory
    `initial`.

    Raises:
        HandoffError: no policy there, or one of another family or anchor.
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


def start_from(module: ChunkPolicy, initial: Path, keep_normalizers: bool) -> None:
    """Takes the weights of the saved policy in the directory `initial` over.

    Args:
        module: its normalisers fitted.
        initial: of the same family and shapes.
        keep_normalizers: takes its normalisers over too, without which its weights see other
            numbers than it learned.

    Raises:
        HandoffError: no weights there, or some of another shape.
    """
    weights, own = read_weights(initial), module.state_dict()
    for name in sorted(own.keys() | weights.keys()):
        there = tuple(weights[name].shape) if name in weights else "absent"
        wanted = tuple(own[name].shape) if name in own else "absent"
        if there != wanted:
            raise HandoffError(
                f"{initial}: '{name}' is {there}, expected {wanted}. Do the sizes of both agree?"
            )
    kept = {
        name: weight
        for name, weight in weights.items()
        if keep_normalizers or "normalize_" not in name
    }
    module.load_state_dict(own | kept)


def split_windows(
    data: DemonstrationArrays, held_out: np.ndarray, module: ChunkPolicy, sizes: PolicyConfig
) -> WindowSplit:
    """The windows of `data`, normalised, on the device of `module`."""
    learned = np.setdiff1d(np.arange(len(data.ends_E)), held_out)
    observation_MO = module.normalize_observation(
        torch.from_numpy(data.observation_MO).to(module.device)
    )
    return WindowSplit(
        *(_windows(data, module, sizes, chosen, observation_MO) for chosen in (learned, held_out))
    )


def normalized_windows(
    data: DemonstrationArrays, module: ChunkPolicy, sizes: PolicyConfig, episodes: np.ndarray
) -> Windows:
    """The windows of `episodes`, normalised as the policy does, on its device."""
    observation_MO = module.normalize_observation(
        torch.from_numpy(data.observation_MO).to(module.device)
    )
    return _windows(data, module, sizes, episodes, observation_MO)


def windows_per_store(data: DemonstrationArrays, episodes: np.ndarray) -> tuple[int, ...]:
    """Windows of `episodes` in every store."""
    index = window_index(data.ends_E, *data.card.model.window).of(episodes)
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
    """The family's own loss over the batch of each update.

    Args:
        module: the policy that learns.
        windows: normalised, on its device.
        batch_size: windows per update.
        seed: of order, noise and whatever else the loss draws.
        precision: `bf16` or `fp32`.
        mixture: how the windows are divided among stores; by default they are of one.
    """
    batches = ImitationBatches(
        windows, mixture or MixedWindows((len(windows),), (1.0,)), batch_size, seed
    )

    def loss(batch: Batch, step: int) -> Tensor:
        with autocast(precision, module.device):
            return module.loss(batch, rng(seed, step))

    return Objective(batches, loss)


class Decoded(NamedTuple):
    """What was read for one update."""

    windows_B: Tensor
    frames: Mapping[str, Tensor]
    goals: np.random.Generator | None
    """Picks them, where there are any."""


class ImitationBatches:
    """The batch of every update, in the two stages of
    `policies.training.preflight.TwoStageBatch`."""

    def __init__(self, windows: Windows, mixture: MixedWindows, size: int, seed: int) -> None:
        """Of `size` windows, in the order of `seed`."""
        self.windows = windows
        self.mixture = mixture
        self.size = size
        self.seed = seed

    def __call__(self, step: int) -> Batch:
        """The batch of update number `step`."""
        return self.collate(self.decode(step))

    def decode(self, step: int) -> Decoded:
        """Chooses the windows of update number `step` and reads their frames."""
        windows_B = torch.from_numpy(self.mixture.batch(self.size, step, self.seed))
        goals = (
            None if self.windows.goal_end_N is None else rng(self.seed, RandomStream.GOAL + step)
        )
        return Decoded(windows_B, self.windows.frames(windows_B), goals)

    def collate(self, rows: Decoded) -> Batch:
        """Puts the batch together, on the device."""
        return self.windows.batch(rows.windows_B, rows.goals, rows.frames)


@torch.no_grad()
def validation_loss(module: ChunkPolicy, windows: Windows, seed: int) -> float:
    """The same loss on held-out windows, each tried a few times, in fp32 and without dropout or
    random crops."""
    learning = module.training
    module.eval()
    tried_N = torch.arange(len(windows)).repeat(_VALIDATION_DRAWS)
    total = 0.0
    for number, chosen_B in enumerate(tried_N.split(_VALIDATION_ROWS)):
        batch = windows.batch(chosen_B, rng(seed, RandomStream.VALIDATION_GOAL + number))
        error = module.loss(batch, rng(seed, RandomStream.VALIDATION + number))
        total += float(error) * len(chosen_B)
    module.train(learning)
    return total / len(tried_N)


def _windows(
    data: DemonstrationArrays,
    module: ChunkPolicy,
    sizes: PolicyConfig,
    episodes: np.ndarray,
    observation_MO: Tensor,
) -> Windows:
    """The windows of `episodes` over observations that are normalised already."""
    index = window_index(data.ends_E, *sizes.window).of(episodes)
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
        torch.from_numpy(index.end_N) if sizes.wants_future_goal else None,
    )
