"""Replay buffer: stores steps and samples n-step transitions or chunks.

Shape suffixes: N new rows, B batch, H steps of a chunk, O observation, A action.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from policies.rl.replay.config import ReplayConfig
from policies.rl.replay.episode_links import mark_drawable, sum_returns
from policies.rl.replay.files import StepFile
from policies.rl.replay.images import ImageRing
from policies.rl.replay.transitions import Observations, Sizes, Transitions
from robots.errors import HandoffError
from robots.wire.steps import Steps, select_steps

_STORED = (
    "observation",
    "next_observation",
    "action",
    "proposed",
    "reward",
    "terminated",
    "truncated",
)
_STORED += ("intervention", "demo", "toggle", "policy_version", "episode", "number")


class Replay:
    """Ring buffer of steps, in which the steps of an episode are linked even if episodes
    interleave.

    A step is the successor of another if it has the same episode, the next number, and the other
    step did not end the episode. Among the corrections of an episode, only those of one takeover
    are linked. An n-step return ends at the last known successor and bootstraps there. A chunk that
    ends with its episode is complete, with zeros for unexecuted actions; any other incomplete
    chunk, such as at the end of a running episode, is never sampled. Not thread-safe.

    Args:
        config: capacity, discount and form of the samples.
        observation: entries O of an observation.
        action: entries A of an action.
        pictures: (name, height, width) of each camera.
        folder: folder of the memory-mapped image files; None keeps images in memory.
        maps: (name, channels, rows, columns) of each camera of which feature maps are stored.

    Raises:
        HandoffError: a capacity, horizon, n_step or discount is out of range.
    """

    def __init__(
        self,
        config: ReplayConfig,
        observation: int,
        action: int,
        pictures: tuple[tuple[str, int, int], ...] = (),
        folder: Path | None = None,
        maps: tuple[tuple[str, int, int, int], ...] = (),
    ) -> None:
        unbounded_return = config.discount == 1.0 and config.mc_tail != 0.0
        if (
            min(config.capacity, config.n_step, config.horizon) < 1
            or not 0.0 <= config.discount <= 1.0
            or unbounded_return
        ):
            raise HandoffError(
                f"replay: capacity {config.capacity}, n_step {config.n_step}, horizon {config.horizon} and discount "
                f"{config.discount}, expected at least 1 each and a discount in [0, 1], below 1 if mc_tail "
                f"({config.mc_tail}) is not 0."
            )
        self.config = config
        n = config.capacity
        self.columns: dict[str, np.ndarray] = {
            "observation": np.zeros((n, observation), np.float32),
            "next_observation": np.zeros((n, observation), np.float32),
            "action": np.zeros((n, action), np.float32),
            "proposed": np.zeros((n, action), np.float32),
            "reward": np.zeros(n, np.float32),
            "terminated": np.zeros(n, bool),
            "truncated": np.zeros(n, bool),
            "intervention": np.zeros(n, bool),
            "demo": np.zeros(n, bool),
            "toggle": np.zeros(n, bool),
            "policy_version": np.zeros(n, np.int64),
            "episode": np.zeros(n, np.int64),
            "number": np.zeros(n, np.int64),
            # Derived from the others: serial numbers of the step and of its neighbours, -1 if there
            # is none.
            "serial": np.full(n, -1, np.int64),
            "predecessor": np.full(n, -1, np.int64),
            "successor": np.full(n, -1, np.int64),
            "drawable": np.zeros(n, bool),
        }
        if config.mc_return:
            self.columns["mc_return"] = np.zeros(n, np.float32)
        self.pictures = ImageRing(pictures, n, folder, maps) if pictures or maps else None
        if self.pictures is not None:
            self.columns |= {name: np.full(n, -1, np.int64) for name in ("picture", "next_picture")}
        self.added = 0
        """Number of steps ever appended; the serial number of the next one."""
        self._open: dict[int, int] = {}
        """Serial number of the newest step of each running episode."""
        self._prune_at = 1024
        self._slots = np.arange(n)
        self._drawable = (-1, self._slots[:0])
        """Cache for `drawable`: value of `added` for which it is valid, and the slots."""
        self._file: StepFile | None = None

    def __len__(self) -> int:
        return min(self.added, self.config.capacity)

    def append(self, steps: Steps) -> None:
        """Appends steps in their order.

        Raises:
            HandoffError: shapes or cameras differ from those of the buffer.
        """
        self._check(steps)
        block = self.config.capacity if self.pictures is None else min(self.config.capacity, 256)
        for begin in range(0, steps.rows, block):
            part = (
                steps
                if steps.rows <= block
                else select_steps(steps, np.arange(begin, min(begin + block, steps.rows)))
            )
            rows = {name: getattr(part, name) for name in _STORED}
            self._write(rows, part)

    def sample(
        self, size: int, rng: np.random.Generator, probability: np.ndarray | None = None
    ) -> Transitions:
        """Samples transitions with replacement among the complete ones; see `sampled_slots`."""
        return self.transitions(self.sampled_slots(size, rng, probability))

    def sampled_slots(
        self, size: int, rng: np.random.Generator, probability: np.ndarray | None = None
    ) -> np.ndarray:
        """(B,) slots, sampled with replacement among those with complete transitions.

        Args:
            size: number of slots B.
            rng: random number generator.
            probability: unnormalised probability of each slot, `(len(self),)`; None is uniform.

        Raises:
            HandoffError: no slot can be sampled, or the probabilities have another length or sum to
                0.
        """
        slots = self.drawable()
        if not len(slots):
            raise HandoffError(
                f"replay: {len(self)} steps are stored, and none can be sampled. Is the buffer empty, or is no "
                f"chunk of {self.config.horizon} actions (horizon) complete?"
            )
        if probability is None:
            return slots[rng.integers(len(slots), size=size)]
        if len(probability) != len(self):
            raise HandoffError(
                f"replay: {len(probability)} probabilities for {len(self)} steps. Were steps added after they were "
                "computed?"
            )
        sums = np.cumsum(probability[slots], dtype=np.float64)
        if not (np.isfinite(sums[-1]) and sums[-1] > 0.0):
            raise HandoffError(
                f"replay: probabilities of the slots that can be sampled sum to {sums[-1]}, expected above 0."
            )
        # Rounding may select the end of the sums, after which only slots of probability 0 follow.
        index = np.searchsorted(sums, rng.random(size) * sums[-1], side="right")
        return slots[np.minimum(index, np.searchsorted(sums, sums[-1]))]

    def drawable(self) -> np.ndarray:
        """Slots in ascending order whose transition or chunk is complete and whose images are still
        stored."""
        if self.config.horizon == 1 and self.pictures is None:
            return self._slots[: len(self)]
        if self._drawable[0] != self.added:
            drawable = self.columns["drawable"][: len(self)]
            if self.pictures is not None:
                drawable = drawable & (self.columns["picture"][: len(self)] >= self.pictures.oldest)
            self._drawable = (self.added, np.flatnonzero(drawable))
        return self._drawable[1]

    def transitions(self, slot_B: np.ndarray) -> Transitions:
        """Transitions that begin at the given slots, complete or not."""
        columns, size = self.columns, len(slot_B)
        if self.config.horizon == self.config.n_step == 1:
            last_B, valid_BH = slot_B, None
            action_BA, reward_B = columns["action"][slot_B], columns["reward"][slot_B]
            toggles_B = columns["toggle"][slot_B].astype(np.float32)
            discount_B = self.config.discount * ~self._ended(slot_B)
        else:
            last_B, action_BA, reward_B, toggles_B, discount_B, valid_BH = self._multi_step(slot_B)
        tensor = torch.from_numpy
        extra = {}
        if self.config.horizon > 1:
            extra["valid_BH"] = tensor(valid_BH)
        if self.config.mc_return:
            extra["mc_return"] = tensor(columns["mc_return"][slot_B])
        return Transitions(
            obs=self._observations("", slot_B),
            action_BA=tensor(action_BA.reshape(size, -1)),
            reward_B=tensor(reward_B),
            discount_B=tensor(discount_B.astype(np.float32)),
            next_obs=self._observations("next_", last_B),
            demo_B=tensor(columns["demo"][slot_B]),
            intervention_B=tensor(columns["intervention"][slot_B]),
            toggles_B=tensor(toggles_B),
            extra=extra,
        )

    def state_dict(self) -> dict[str, Any]:
        """Stored steps, oldest first, and images, for `load_state_dict`."""
        state: dict[str, Any] = {"columns": self.rows(self.added - len(self)), "added": self.added}
        if self.pictures is not None:
            state["pictures"] = self.pictures.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a `state_dict`, also that of a replay with another n_step, horizon or capacity.

        Raises:
            HandoffError: columns or shapes differ, as in the state of another task.
        """
        if self.pictures is not None:
            self.pictures.load_state_dict(state["pictures"])
        self._restore(state["columns"], state["added"])
        self._file = None

    def save(self, folder: Path) -> None:
        """Writes the steps added since the last `save` or `load`; a crash leaves the old or the new
        state.

        Images are written to their files when they are appended; `load` discards those whose steps
        were not saved.

        Raises:
            HandoffError: `folder` holds steps that this replay neither saved nor loaded, the images
                are in memory or in another folder, or the disk is full.
        """
        if self.pictures is not None:
            self.pictures.flush(folder)
        if self._file is None or self._file.folder != folder:
            self._file = StepFile.create(folder, self.rows(0, 0), self.config.capacity)
        self._file.write(self.added, self.added - len(self), self.rows)

    def load(self, folder: Path) -> None:
        """Loads the steps saved in `folder`, with the same capacity into the same slots.

        If this replay is larger than a saved one that had begun to overwrite steps, `added`
        restarts at the number of loaded steps.

        Raises:
            HandoffError: there is no saved replay, it is damaged or of another task, or the images
                are in memory or in another folder.
        """
        if self.pictures is not None:
            self.pictures.check_folder(folder)
        file = StepFile.open(folder, self.rows(0, 0), self.config.capacity)
        rows, added = file.read()
        if self.pictures is not None:
            self.pictures.resume(int(rows["next_picture"].max(initial=-1)) + 1)
        self._restore(rows, added)
        self._file = file

    def _check(self, steps: Steps) -> None:
        columns, n = self.columns, steps.rows
        shapes = (
            steps.observation.shape,
            steps.next_observation.shape,
            steps.action.shape,
            steps.proposed.shape,
        )
        sizes = (columns["observation"].shape[1], columns["action"].shape[1])
        if shapes != ((n, sizes[0]), (n, sizes[0]), (n, sizes[1]), (n, sizes[1])):
            raise HandoffError(
                f"replay: observations, next observations, actions and proposed actions have shapes {shapes} for {n} "
                f"rewards, expected {sizes[0]} and {sizes[1]} entries. Are they of another task?"
            )
        if self.pictures is not None:
            self.pictures.check(steps)

    def _write(self, rows: dict[str, np.ndarray], steps: Steps | None) -> None:
        """Writes at most `capacity` rows; images come from `steps`, or `rows` has their numbers."""
        columns, capacity = self.columns, self.config.capacity
        n = len(rows["reward"])
        serial_N = np.arange(self.added, self.added + n)
        slot_N = serial_N % capacity
        predecessor_N = self._predecessors(rows, serial_N)
        # Steps that these rows overwrite are no longer predecessors.
        predecessor_N[predecessor_N < self.added + n - capacity] = -1
        for name, value in rows.items():
            columns[name][slot_N] = value
        columns["serial"][slot_N], columns["successor"][slot_N] = serial_N, -1
        columns["predecessor"][slot_N] = predecessor_N
        linked_N = predecessor_N >= 0
        columns["successor"][predecessor_N[linked_N] % capacity] = serial_N[linked_N]
        self.added += n
        if self.pictures is not None and steps is not None:
            self.pictures.append(
                steps, columns, slot_N, np.where(linked_N, predecessor_N % capacity, -1)
            )
        mark_drawable(columns, serial_N, self.config.horizon)
        if self.config.mc_return:
            sum_returns(
                columns,
                serial_N,
                self.config.discount,
                self.config.timeouts_end,
                self.config.mc_tail,
            )
        if len(self._open) > self._prune_at:
            oldest = self.added - capacity
            self._open = {
                episode: serial for episode, serial in self._open.items() if serial >= oldest
            }
            self._prune_at = 1024 + 2 * len(self._open)

    def _predecessors(self, rows: dict[str, np.ndarray], serial_N: np.ndarray) -> np.ndarray:
        """(N,) serial numbers of the predecessors of new rows, -1 if there is none; also updates
        the running episodes."""
        episode_N, number_N = rows["episode"], rows["number"]
        ended_N = rows["terminated"] | rows["truncated"]
        order_N = np.argsort(episode_N, kind="stable")
        same_N = np.diff(episode_N[order_N], prepend=episode_N[order_N[:1]] - 1) == 0
        predecessor_N = np.full(len(serial_N), -1, np.int64)
        first, second = order_N[np.flatnonzero(same_N) - 1], order_N[same_N]
        follows = ~ended_N[first] & (number_N[first] + 1 == number_N[second])
        predecessor_N[second[follows]] = serial_N[first[follows]]
        heads = order_N[~same_N]
        tails = order_N[np.append(np.flatnonzero(~same_N)[1:], len(order_N)) - 1]
        for head, tail in zip(heads.tolist(), tails.tolist(), strict=True):
            episode = int(episode_N[head])
            predecessor = self._open.pop(episode, -1)
            slot = predecessor % self.config.capacity
            known = predecessor >= 0 and self.columns["serial"][slot] == predecessor
            if known and self.columns["number"][slot] + 1 == number_N[head]:
                predecessor_N[head] = predecessor
            if not ended_N[tail]:
                self._open[episode] = int(serial_N[tail])
        return predecessor_N

    def _ended(self, slot_B: np.ndarray) -> np.ndarray:
        ended_B = self.columns["terminated"][slot_B]
        return ended_B | self.columns["truncated"][slot_B] if self.config.timeouts_end else ended_B

    def _multi_step(self, slot_B: np.ndarray) -> tuple[np.ndarray, ...]:
        """n-step returns or chunks: last slots, actions, sums of rewards and toggles, discounts,
        and masks of executed actions."""
        config = self.config
        columns = self.columns
        size = len(slot_B)
        chunk = config.horizon > 1
        current_B, running_B = slot_B, np.ones(size, bool)
        last_B = slot_B
        reward_B = np.zeros(size, np.float32)
        toggles_B = np.zeros(size, np.float32)
        discount_B = np.ones(size)
        action_BHA = np.zeros((size, config.horizon, columns["action"].shape[1]), np.float32)
        valid_BH = np.zeros((size, config.horizon), bool)
        for k in range(config.horizon if chunk else config.n_step):
            weight_B = (discount_B * running_B).astype(np.float32)
            reward_B += weight_B * columns["reward"][current_B]
            toggles_B += weight_B * columns["toggle"][current_B]
            if k < config.horizon:
                action_BHA[:, k] = columns["action"][current_B] * running_B[:, None]
                valid_BH[:, k] = running_B
            last_B = np.where(running_B, current_B, last_B)
            ended_B = self._ended(current_B)
            discount_B = np.where(running_B, discount_B * config.discount * ~ended_B, discount_B)
            successor_B = columns["successor"][current_B]
            running_B = running_B & ~ended_B & (successor_B >= 0)
            current_B = np.where(running_B, successor_B % config.capacity, current_B)
        return last_B, action_BHA, reward_B, toggles_B, discount_B, valid_BH

    def _observations(self, prefix: str, slot_B: np.ndarray) -> Observations:
        vector_BO = torch.from_numpy(self.columns[f"{prefix}observation"][slot_B])
        if self.pictures is None:
            return Observations(vector_BO)
        return Observations(
            vector_BO, self.pictures.gather(self.columns[f"{prefix}picture"][slot_B])
        )

    def rows(self, begin: int, end: int | None = None) -> dict[str, np.ndarray]:
        """Stored columns of the steps with serial numbers from `begin` to `end` - 1, as in the
        `columns` of a `state_dict`."""
        slots = np.arange(begin, self.added if end is None else end) % self.config.capacity
        names = _STORED if self.pictures is None else (*_STORED, "picture", "next_picture")
        return {name: self.columns[name][slots] for name in names}

    def _restore(self, rows: dict[str, np.ndarray], added: int) -> None:
        """Replaces the content by rows whose last serial number is `added` - 1."""
        empty = self.rows(0, 0)
        unexpected = {
            name: rows[name].shape[1:] if name in rows else None
            for name in empty.keys() | rows.keys()
            if name not in rows
            or name not in empty
            or rows[name].shape[1:] != empty[name].shape[1:]
        }
        if unexpected:
            raise HandoffError(
                f"replay: stored columns {unexpected} differ from those of this replay. Is it the state of "
                "another task?"
            )
        n = len(rows["reward"])
        # Steps of a smaller replay fill the first slots.
        added = n if n < min(added, self.config.capacity) else added
        if self.pictures is not None:
            rows = rows | self.pictures.stored_numbers(rows["picture"], rows["next_picture"])
        self.added = added - n
        self._open = {}
        self._drawable = (-1, self._drawable[1])
        self.columns["serial"][:] = -1
        for begin in range(0, n, self.config.capacity):
            part = slice(begin, begin + self.config.capacity)
            self._write({name: rows[name][part] for name in rows}, None)


def sizes_of(replay: Replay) -> Sizes:
    """Sizes of the observations, actions and images in a replay."""
    ring = replay.pictures
    return Sizes(
        observation=replay.columns["observation"].shape[1],
        action=replay.columns["action"].shape[1],
        pictures=() if ring is None else ring.cameras,
        maps=() if ring is None else ring.maps,
    )
