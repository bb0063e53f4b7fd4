"""Options of this package."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from policies.policy import ObservationTensors, Words
from robots.language.text import INSTRUCTION, decode


def observed_of(seen: Any) -> ObservationTensors:
    """What `policies.rl.collection.chunk_env.ChunkWorlds` shows, as a policy sees it."""
    if isinstance(seen, Tensor):
        return ObservationTensors(seen)
    names = [str(name) for name in seen.keys()]  # noqa: SIM118 - iterating goes through the rows
    sensors = {
        name: seen[name][:, None]
        for name in names
        if name not in (VECTOR, INSTRUCTION, TOKENS, MASK)
    }
    if TOKENS in names:
        # Worlds that stay on a device have read them before.
        return ObservationTensors(seen[VECTOR], sensors, words=Words(seen[TOKENS], seen[MASK]))
    told = decode(seen[INSTRUCTION].numpy()) if INSTRUCTION in names else ()
    return ObservationTensors(seen[VECTOR], sensors, told)


VECTOR = "vector"
"""Name of the observation vector among several things seen."""


TOKENS, MASK = "tokens", "mask"
"""Names of the words as the policy reads them, where worlds have done that for it."""
