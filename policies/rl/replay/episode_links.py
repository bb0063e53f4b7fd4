"""Marks complete chunks and computes Monte-Carlo returns when steps are added to a replay buffer.

Both functions follow the links to the preceding steps, for all new rows at once. A link is valid
while its slot still holds that step.

Shape suffixes: N new rows, E new rows that end an episode.
"""

from __future__ import annotations

import numpy as np

Columns = dict[str, np.ndarray]
"""Columns of the ring buffer; see `policies.rl.replay.buffer.Replay`."""


def mark_drawable(columns: Columns, serial_N: np.ndarray, horizon: int) -> None:
    """Marks the steps whose chunk is completed by new rows.

    These are the step `horizon - 1` before each new row and, if the row ends its episode, all steps
    in between.

    Args:
        columns: of the ring buffer; `drawable` is written.
        serial_N: serial numbers of the new rows.
        horizon: actions per chunk.
    """
    slots = len(columns["serial"])
    columns["drawable"][serial_N % slots] = horizon == 1
    if horizon == 1:
        return
    current_N, stored_N = serial_N, np.ones(len(serial_N), bool)
    ended_N = columns["terminated"][serial_N % slots] | columns["truncated"][serial_N % slots]
    for k in range(horizon):
        complete_N = stored_N if k == horizon - 1 else stored_N & ended_N
        columns["drawable"][current_N[complete_N] % slots] = True
        current_N = np.where(stored_N, columns["predecessor"][current_N % slots], -1)
        stored_N = (current_N >= 0) & (columns["serial"][current_N % slots] == current_N)


def sum_returns(
    columns: Columns, serial_N: np.ndarray, discount: float, timeouts_end: bool, tail: float
) -> None:
    """Computes the discounted return of every step of the episodes that end with a new row.

    Args:
        columns: of the ring buffer; `mc_return` is written, minus infinity for new rows of running
            episodes.
        serial_N: serial numbers of the new rows.
        discount: discount per step.
        timeouts_end: whether truncation by a time limit counts as termination.
        tail: constant reward per step assumed after a truncation that does not.
    """
    slots = len(columns["serial"])
    slot_N = serial_N % slots
    columns["mc_return"][slot_N] = -np.inf
    slot_E = slot_N[columns["terminated"][slot_N] | columns["truncated"][slot_N]]
    truncated_E = ~columns["terminated"][slot_E] & (not timeouts_end)
    sum_E = np.where(truncated_E, tail / (1.0 - discount) if tail else 0.0, 0.0)
    while len(slot_E):
        sum_E = columns["reward"][slot_E] + discount * sum_E
        columns["mc_return"][slot_E] = sum_E
        predecessor_E = columns["predecessor"][slot_E]
        stored_E = (predecessor_E >= 0) & (
            columns["serial"][predecessor_E % slots] == predecessor_E
        )
        slot_E, sum_E = predecessor_E[stored_E] % slots, sum_E[stored_E]
