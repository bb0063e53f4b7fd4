"""Replay: steps in, batches of n-step transitions or chunks out.

Shape suffixes: N rows taken in, B batch, H steps of a chunk, O observation, A action.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from policies.rl.replay.config import ReplayConfig
from policies.rl.replay.episode_links import mark_drawable, sum_returns
from policies.rl.replay.files import StepFile
from policies.rl.replay.images import Pictures
from policies.rl.replay.transitions import Observations, Sizes, Transitions
from robots.errors import HandoffError
from robots.wire.steps import Steps, chosen

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
    """A ring of steps. Steps of one episode find their successors, however episodes interleave.

    A step follows another where it has the same episode, the next number, and the other one did not
    end: of an episode's corrections only those of one takeover are linked. An n-step sum ends where
    no successor is known and bootstraps there. A chunk that ends with its episode is whole, its
    unexecuted actions zero; one that breaks off otherwise, as the running episode's newest do, is
    never drawn. Not for use by several threads at a time.

    Args:
        config: see there.
        observation: O.
        action: A.
        pictures: (name, height, width) of every camera.
        folder: where the pictures lie, in memory-mapped files; None keeps them in memory.

    Raises:
        HandoffError: a capacity, horizon or discount that is none.
    """

    def __init__(
        self,
        config: ReplayConfig,
        observation: int,
        action: int,
        pictures: tuple[tuple[str, int, int], ...] = (),
        folder: Path | None = None,
    ) -> None:
        endless = config.discount == 1.0 and config.mc_tail != 0.0
        if (
            min(config.capacity, config.n_step, config.horizon) < 1
            or not 0.0 <= config.discount <= 1.0
            or endless
        ):
            raise HandoffError(
                f"replay: capacity {config.capacity}, n_step {config.n_step}, horizon {config.horizon} and discount "
                f"{config.discount}, expected at least 1 each and a discount in [0, 1], below 1 with an mc_tail "
                f"({config.mc_tail}). A typing error?"
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
            # Worked out from the others: serial numbers of the step itself and its neighbours, -1
            # without one.
            "serial": np.full(n, -1, np.int64),
            "predecessor": np.full(n, -1, np.int64),
            "successor": np.full(n, -1, np.int64),
            "drawable": np.zeros(n, bool),
        }
        if config.mc_return:
            self.columns["mc_return"] = np.zeros(n, np.float32)
        self.pictures = Pictures(pictures, n, folder) if pictures else None
        if self.pictures is not None:
            self.columns |= {name: np.full(n, -1, np.int64) for name in ("picture", "next_picture")}
        self.added = 0
        """Steps ever appended; the next one's serial number."""
        self._open: dict[int, int] = {}
        """Serial number of the newest step of every episode that has not ended."""
        self._tidy_at = 1024
        self._slots = np.arange(n)
        self._drawable = (-1, self._slots[:0])
        """Up to which serial number the slots that may be drawn are known, and those."""
        self._file: StepFile | None = None

    def __len__(self) -> int:
        return min(self.added, self.config.capacity)

    def append(self, steps: Steps) -> None:
        """Takes steps in, in their order.

        Raises:
            HandoffError: other shapes or cameras than the buffer was made for.
        """
        self._check(steps)
        block = self.config.capacity if self.pictures is None else min(self.config.capacity, 256)
        for begin in range(0, steps.rows, block):
            part = (
                steps
                if steps.rows <= block
                else chosen(steps, np.arange(begin, min(begin + block, steps.rows)))
            )
            rows = {name: getattr(part, name) for name in _STORED}
            self._write(rows, part)

    def sample(
        self, size: int, draw: np.random.Generator, probability: np.ndarray | None = None
    ) -> Transitions:
        """`size` transitions, drawn with replacement among those that are whole.

        Args:
            size: B.
            draw: all chance.
            probability: `(len(self),)` of every slot, in any scale; None is uniform.

        Raises:
            HandoffError: nothing can be drawn, or a probability per slot of another length.
        """
        slots = self.drawable()
        if not len(slots):
            raise HandoffError(
                f"replay: {len(self)} steps are stored, none of which can be drawn. Did no step arrive yet, or is no "
                f"run of {self.config.horizon} actions (horizon) whole?"
            )
        if probability is None:
            return self.transitions(slots[draw.integers(len(slots), size=size)])
        if len(probability) != len(self):
            raise HandoffError(
                f"replay: {len(probability)} probabilities for {len(self)} steps. Were steps added after they were "
                "worked out?"
            )
        sums = np.cumsum(probability[slots], dtype=np.float64)
        if not (np.isfinite(sums[-1]) and sums[-1] > 0.0):
            raise HandoffError(
                f"replay: probabilities of what can be drawn sum up to {sums[-1]}, expected above 0."
            )
        # Rounding may reach the end of the sums, behind which lie the slots without probability.
        place = np.searchsorted(sums, draw.random(size) * sums[-1], side="right")
        return self.transitions(slots[np.minimum(place, np.searchsorted(sums, sums[-1]))])

    def drawable(self) -> np.ndarray:
        """Slots, ascending, whose transition or chunk is whole and whose pictures are still
        there."""
        if self.config.horizon == 1 and self.pictures is None:
            return self._slots[: len(self)]
        if self._drawable[0] != self.added:
            may = self.columns["drawable"][: len(self)]
            if self.pictures is not None:
                may = may & (self.columns["picture"][: len(self)] >= self.pictures.oldest)
            self._drawable = (self.added, np.flatnonzero(may))
        return self._drawable[1]

    def transitions(self, slot_B: np.ndarray) -> Transitions:
        """The transitions that begin at the given slots, whole or not."""
        columns, size = self.columns, len(slot_B)
        if self.config.horizon == self.config.n_step == 1:
            last_B, valid_BH = slot_B, None
            action_BA, reward_B = columns["action"][slot_B], columns["reward"][slot_B]
            toggles_B = columns["toggle"][slot_B].astype(np.float32)
            discount_B = self.config.discount * ~self._ended(slot_B)
        else:
            last_B, action_BA, reward_B, toggles_B, discount_B, valid_BH = self._followed(slot_B)
        tensor = torch.from_numpy
        extra = {}
        if self.config.horizon > 1:
            extra["valid_BH"] = tensor(valid_BH)
        if self.config.mc_return:
            extra["mc_return"] = tensor(columns["mc_return"][slot_B])
        return Transitions(
            seen=self._seen("", slot_B),
            action_BA=tensor(action_BA.reshape(size, -1)),
            reward_B=tensor(reward_B),
            discount_B=tensor(discount_B.astype(np.float32)),
            next_seen=self._seen("next_", last_B),
            demo_B=tensor(columns["demo"][slot_B]),
            intervention_B=tensor(columns["intervention"][slot_B]),
            toggles_B=tensor(toggles_B),
            extra=extra,
        )

    def state_dict(self) -> dict[str, Any]:
        """All that is stored, for `load_state_dict`: steps in the order in which they came, and
        pictures."""
        state: dict[str, Any] = {"columns": self.rows(self.added - len(self)), "added": self.added}
        if self.pictures is not None:
            state["pictures"] = self.pictures.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes `state_dict` over, also that of a replay with another n_step, horizon or capacity.

        Raises:
            HandoffError: other columns or shapes, such as another task's.
        """
        if self.pictures is not None:
            self.pictures.load_state_dict(state["pictures"])
        self._restore(state["columns"], state["added"])
        self._file = None

    def save(self, folder: Path) -> None:
        """Writes what is new since the last `save` or `load`; a crash at any moment leaves one of
        the two states.

        Pictures are written to their files when they come; those whose steps were not saved are
        forgotten by `load`.

        Raises:
            HandoffError: `folder` holds steps that this replay has neither saved nor loaded; its
                pictures lie in memory or another folder; the disk is full.
        """
        if self.pictures is not None:
            self.pictures.flush(folder)
        if self._file is None or self._file.folder != folder:
            self._file = StepFile.create(folder, self.rows(0, 0), self.config.capacity)
        self._file.write(self.added, self.added - len(self), self.rows)

    def load(self, folder: Path) -> None:
        """Takes over what was saved in `folder`; with the same capacity, slot for slot.

        A larger replay than the saved one, where that had begun to overwrite, counts `added` anew
        from what is left.

        Raises:
            HandoffError: nothing was saved there, it is damaged, or it is another task's; its
                pictures lie in memory or another folder.
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
                f"replay: observations, next ones, actions and proposals {shapes} for {n} rewards, expected "
                f"{sizes[0]} and {sizes[1]} entries. Another task?"
            )
        if self.pictures is not None:
            self.pictures.check(steps)

    def _write(self, rows: dict[str, np.ndarray], steps: Steps | None) -> None:
        """Takes at most `capacity` rows in; `steps` brings their pictures, else `rows` holds those'
        numbers."""
        columns, capacity = self.columns, self.config.capacity
        n = len(rows["reward"])
        serial_N = np.arange(self.added, self.added + n)
        slot_N = serial_N % capacity
        before_N = self._before(rows, serial_N)
        # What the same rows overwrite is no predecessor any more.
        before_N[before_N < self.added + n - capacity] = -1
        for name, value in rows.items():
            columns[name][slot_N] = value
        columns["serial"][slot_N], columns["successor"][slot_N] = serial_N, -1
        columns["predecessor"][slot_N] = before_N
        linked_N = before_N >= 0
        columns["successor"][before_N[linked_N] % capacity] = serial_N[linked_N]
        self.added += n
        if self.pictures is not None and steps is not None:
            self.pictures.append(
                steps, columns, slot_N, np.where(linked_N, before_N % capacity, -1)
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
        if len(self._open) > self._tidy_at:
            oldest = self.added - capacity
            self._open = {
                episode: serial for episode, serial in self._open.items() if serial >= oldest
            }
            self._tidy_at = 1024 + 2 * len(self._open)

    def _before(self, rows: dict[str, np.ndarray], serial_N: np.ndarray) -> np.ndarray:
        """(N,) serial number of every new row's predecessor, -1 without one; keeps the account of
        running episodes."""
        episode_N, number_N = rows["episode"], rows["number"]
        over_N = rows["terminated"] | rows["truncated"]
        order_N = np.argsort(episode_N, kind="stable")
        same_N = np.diff(episode_N[order_N], prepend=episode_N[order_N[:1]] - 1) == 0
        before_N = np.full(len(serial_N), -1, np.int64)
        first, second = order_N[np.flatnonzero(same_N) - 1], order_N[same_N]
        follows = ~over_N[first] & (number_N[first] + 1 == number_N[second])
        before_N[second[follows]] = serial_N[first[follows]]
        heads = order_N[~same_N]
        tails = order_N[np.append(np.flatnonzero(~same_N)[1:], len(order_N)) - 1]
        for head, tail in zip(heads.tolist(), tails.tolist(), strict=True):
            episode = int(episode_N[head])
            before = self._open.pop(episode, -1)
            place = before % self.config.capacity
            known = before >= 0 and self.columns["serial"][place] == before
            if known and self.columns["number"][place] + 1 == number_N[head]:
                before_N[head] = before
            if not over_N[tail]:
                self._open[episode] = int(serial_N[tail])
        return before_N

    def _ended(self, slot_B: np.ndarray) -> np.ndarray:
        ended_B = self.columns["terminated"][slot_B]
        return ended_B | self.columns["truncated"][slot_B] if self.config.timeouts_end else ended_B

    def _followed(self, slot_B: np.ndarray) -> tuple[np.ndarray, ...]:
        """Last slots, actions, sums of rewards and toggles, discounts, and which actions were
        executed."""
        config, columns, size = self.config, self.columns, len(slot_B)
        chunk = config.horizon > 1
        at_B, running_B = slot_B, np.ones(size, bool)
        last_B = slot_B
        reward_B, toggles_B, discount_B = (
            np.zeros(size, np.float32),
            np.zeros(size, np.float32),
            np.ones(size),
        )
        action_BHA = np.zeros((size, config.horizon, columns["action"].shape[1]), np.float32)
        valid_BH = np.zeros((size, config.horizon), bool)
        for k in range(config.horizon if chunk else config.n_step):
            weight_B = (discount_B * running_B).astype(np.float32)
            reward_B += weight_B * columns["reward"][at_B]
            toggles_B += weight_B * columns["toggle"][at_B]
            if k < config.horizon:
                action_BHA[:, k] = columns["action"][at_B] * running_B[:, None]
                valid_BH[:, k] = running_B
            last_B = np.where(running_B, at_B, last_B)
            ended_B = self._ended(at_B)
            discount_B = np.where(running_B, discount_B * config.discount * ~ended_B, discount_B)
            follow_B = columns["successor"][at_B]
            running_B = running_B & ~ended_B & (follow_B >= 0)
            at_B = np.where(running_B, follow_B % config.capacity, at_B)
        return last_B, action_BHA, reward_B, toggles_B, discount_B, valid_BH

    def _seen(self, which: str, slot_B: np.ndarray) -> Observations:
        vector_BO = torch.from_numpy(self.columns[f"{which}observation"][slot_B])
        if self.pictures is None:
            return Observations(vector_BO)
        return Observations(
            vector_BO, self.pictures.gather(self.columns[f"{which}picture"][slot_B])
        )

    def rows(self, begin: int, end: int | None = None) -> dict[str, np.ndarray]:
        """What was taken in, of the serial numbers from `begin` until `end`: the `columns` of a
        `state_dict`."""
        slots = np.arange(begin, self.added if end is None else end) % self.config.capacity
        names = _STORED if self.pictures is None else (*_STORED, "picture", "next_picture")
        return {name: self.columns[name][slots] for name in names}

    def _restore(self, rows: dict[str, np.ndarray], added: int) -> None:
        """Forgets all and takes over rows that ended with serial number `added` - 1."""
        empty = self.rows(0, 0)
        strange = {
            name: rows[name].shape[1:] if name in rows else None
            for name in empty.keys() | rows.keys()
            if name not in rows
            or name not in empty
            or rows[name].shape[1:] != empty[name].shape[1:]
        }
        if strange:
            raise HandoffError(
                f"replay: stored columns {strange} are not those of this replay. Another task's state?"
            )
        n = len(rows["reward"])
        # Steps fewer than there is room for, of a smaller replay, lie in the first slots.
        added = n if n < min(added, self.config.capacity) else added
        if self.pictures is not None:
            rows = rows | self.pictures.kept(rows["picture"], rows["next_picture"])
        self.added, self._open, self._drawable = added - n, {}, (-1, self._drawable[1])
        self.columns["serial"][:] = -1
        for begin in range(0, n, self.config.capacity):
            part = slice(begin, begin + self.config.capacity)
            self._write({name: rows[name][part] for name in rows}, None)


def sizes_of(replay: Replay) -> Sizes:
    """The sizes that a replay's columns give."""
    pictures = () if replay.pictures is None else replay.pictures.cameras
    return Sizes(
        observation=replay.columns["observation"].shape[1],
        action=replay.columns["action"].shape[1],
        pictures=pictures,
    )
