"""Links new steps of a replay buffer to those before them in their episodes: whole chunks and
returns.

Both walk back along the predecessors, all new rows at once. A predecessor counts as long as its
slot still holds it.

Shape suffixes: N new rows, E those of them that end an episode.
"""

from __future__ import annotations

import numpy as np

Columns = dict[str, np.ndarray]
"""Of the ring; see `policies.rl.replay.buffer.Replay`."""


def mark_drawable(columns: Columns, serial_N: np.ndarray, horizon: int) -> None:
    """Marks the steps whose chunk the new rows complete.

    That is the step `horizon - 1` before a new row, and where the new row ends its episode all in
    between as well.
    """
    slots = len(columns["serial"])
    columns["drawable"][serial_N % slots] = horizon == 1
    if horizon == 1:
        return
    at_N, alive_N = serial_N, np.ones(len(serial_N), bool)
    over_N = columns["terminated"][serial_N % slots] | columns["truncated"][serial_N % slots]
    for k in range(horizon):
        whole_N = alive_N if k == horizon - 1 else alive_N & over_N
        columns["drawable"][at_N[whole_N] % slots] = True
        at_N = np.where(alive_N, columns["predecessor"][at_N % slots], -1)
        alive_N = (at_N >= 0) & (columns["serial"][at_N % slots] == at_N)


def sum_returns(
    columns: Columns, serial_N: np.ndarray, discount: float, timeouts_end: bool, tail: float
) -> None:
    """Notes the discounted return to the episode's end at every step of the episodes that new rows
    end.

    Args:
        columns: of the ring.
        serial_N: of the new rows; minus infinity is noted where they end none.
        discount: per step.
        timeouts_end: whether a time limit is an end of the task.
        tail: reward per step for ever after a time limit that is none.
    """
    slots = len(columns["serial"])
    slot_N = serial_N % slots
    columns["mc_return"][slot_N] = -np.inf
    slot_E = slot_N[columns["terminated"][slot_N] | columns["truncated"][slot_N]]
    goes_on_E = ~columns["terminated"][slot_E] & (not timeouts_end)
    sum_E = np.where(goes_on_E, tail / (1.0 - discount) if tail else 0.0, 0.0)
    while len(slot_E):
        sum_E = columns["reward"][slot_E] + discount * sum_E
        columns["mc_return"][slot_E] = sum_E
        before_E = columns["predecessor"][slot_E]
        there_E = (before_E >= 0) & (columns["serial"][before_E % slots] == before_E)
        slot_E, sum_E = before_E[there_E] % slots, sum_E[there_E]
