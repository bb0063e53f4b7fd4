"""States that a policy visited in fine-tuning or distillation, saved with its weights so that
students can be distilled on them.

Shape suffixes: R states, T observed steps, O observation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from robots.errors import HandoffError
from robots.storage.durable import explain_write_errors, write_atomically

FILE = "practised.safetensors"
MAX_STATES = 20_000
"""Maximum number of saved states; the newest are kept."""
_VECTOR = "seen"


def save_visited_states(path: Path, states: Any) -> None:
    """Saves the newest states, normalised by the policy in the folder `path`.

    Args:
        path: folder of the policy.
        states: (R, T, O), or a TensorDict of that (`policies.rl.on_policy.observations.VECTOR`) and
            of other observation tensors by name.

    Raises:
        HandoffError: a full disk.
    """
    from safetensors.torch import save

    with explain_write_errors(path, "the visited states were not saved"):
        newest = states[-MAX_STATES:]
        parts = {_VECTOR: newest} if isinstance(newest, Tensor) else dict(newest.items())
        write_atomically(
            path / FILE, save({name: part.contiguous() for name, part in parts.items()})
        )


def load_visited_states(path: Path, shape: tuple[int, int]) -> Tensor | None:
    """Visited states (R, T, O) of the policy in the folder `path`; None where there are none.

    Args:
        path: folder of the policy.
        shape: (T, O) of the policy.

    Raises:
        HandoffError: a damaged file, or one of another policy.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not (path / FILE).exists():
        return None
    try:
        states_RTO = load_file(path / FILE)[_VECTOR]
    except (SafetensorError, KeyError) as error:
        raise HandoffError(
            f"{path / FILE}: damaged ({error}). Was it cut short by a copy?"
        ) from None
    if tuple(states_RTO.shape[1:]) != shape:
        raise HandoffError(
            f"{path / FILE}: states of shape {tuple(states_RTO.shape[1:])}, expected {shape}. "
            "Is the file of another policy?"
        )
    return states_RTO
