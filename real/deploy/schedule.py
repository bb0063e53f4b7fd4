"""Schedules the actions of chunks on the robot's clock."""

from __future__ import annotations

from collections import deque

import numpy as np

from robots.contract import Contract
from robots.errors import HandoffError


class ChunkSchedule:
    """Executes chunks synchronously: a new chunk is due every `n_action_steps`, and the rest of the
    last one bridges its delay.

    With temporal ensembling a new chunk is due in every step, and an action is the weighted mean of
    all chunks that have one, as in `robots.control.temporal_ensemble`; chunks that a slow policy
    did not deliver are missing from the mean.

    Args:
        contract: horizon, history and number of actions to execute.

    Raises:
        HandoffError: the actions to execute exceed the horizon.
    """

    def __init__(self, contract: Contract) -> None:
        self._first = contract.n_obs_steps - 1
        self._steps = contract.n_action_steps if contract.ensemble is None else 1
        self._ensemble = contract.ensemble
        if self._first + self._steps > contract.horizon:
            raise HandoffError(
                f"contract: {self._steps} actions from index {self._first} do not fit the horizon {contract.horizon}."
            )
        self._chunks: list[tuple[int, np.ndarray]] = []
        """Chunks with the policy steps of their observations, oldest first; one without
        ensembling."""
        self._requested_step: int | None = None

    def due(self, step: int) -> bool:
        """Whether an inference must begin at policy step `step`."""
        return self._requested_step is None or step - self._requested_step >= self._steps

    def requested(self, step: int) -> None:
        """Notes that an inference on the observation of policy step `step` has begun."""
        self._requested_step = step

    def receive(self, chunk: np.ndarray, step: int) -> None:
        """Takes the chunk `(horizon, A)` predicted from the observation of policy step `step`."""
        kept = [] if self._ensemble is None else self._chunks
        expired = step - len(chunk) + self._first
        self._chunks = [*(old for old in kept if old[0] > expired), (step, chunk)]

    def action(self, step: int) -> np.ndarray | None:
        """`(A,)` action of policy step `step`; None if no chunk has one."""
        indexed = [(self._first + step - begin, chunk) for begin, chunk in self._chunks]
        predictions = [chunk[index] for index, chunk in indexed if index < len(chunk)]
        if not predictions:
            return None
        weights = np.exp(-(self._ensemble or 0.0) * np.arange(len(predictions)))
        return np.tensordot(weights / weights.sum(), predictions, axes=1).astype(
            predictions[-1].dtype
        )


class ObservationHistory:
    """The newest observation and those some steps before; the first one is repeated at an episode's
    start, as in training.

    Args:
        n_obs_steps: number of observations.
        stride: steps between two of them.
    """

    def __init__(self, n_obs_steps: int, stride: int = 1) -> None:
        self._rows: deque[np.ndarray] = deque(maxlen=(n_obs_steps - 1) * stride + 1)
        self._stride = stride

    def append(self, row: np.ndarray) -> None:
        """Adds one step's flat observation `(O,)`, or the picture or points of one step."""
        if not self._rows:
            self._rows.extend([row] * (self._rows.maxlen or 1))
        self._rows.append(row)

    def stacked(self, dtype: type[np.generic] | None = np.float32) -> np.ndarray:
        """`(1, n_obs_steps, ...)`, newest last, in a number type; None keeps that of the rows."""
        rows = np.stack([*self._rows][:: self._stride])[None]
        return rows if dtype is None else rows.astype(dtype)
