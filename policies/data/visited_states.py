"""States that a policy met in practice, kept beside its weights: there, too, a student is to answer
as it does.

Shape suffixes: R states, T observed steps, O observation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from robots.errors import HandoffError
from robots.storage.durable import explain_write_errors, write_atomically

FILE = "practised.safetensors"
MOST = 20_000
"""States that are kept, the newest."""
_SEEN = "seen"


def save_practised(path: Path, seen: Any) -> None:
    """Writes the newest of the states, normalised as the policy in the folder `path` does.

    Args:
        path: folder.
        seen: (R, T, O), or a TensorDict of that (`policies.rl.on_policy.observations.VECTOR`) and
            what else was seen, by name.

    Raises:
        HandoffError: a full disk.
    """
    from safetensors.torch import save

    with explain_write_errors(path, "the states of practice were not saved"):
        newest = seen[-MOST:]
        parts = {_SEEN: newest} if isinstance(newest, Tensor) else dict(newest.items())
        write_atomically(
            path / FILE, save({name: part.contiguous() for name, part in parts.items()})
        )


def load_practised(path: Path, shape: tuple[int, int]) -> Tensor | None:
    """(R, T, O) of the policy in the folder `path`; None where it has not practised.

    Args:
        path: folder.
        shape: T, O of the policy.

    Raises:
        HandoffError: a damaged file, or another policy's.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not (path / FILE).exists():
        return None
    try:
        seen_RTO = load_file(path / FILE)[_SEEN]
    except (SafetensorError, KeyError) as error:
        raise HandoffError(
            f"{path / FILE}: damaged ({error}). Was it cut short by a copy?"
        ) from None
    if tuple(seen_RTO.shape[1:]) != shape:
        raise HandoffError(
            f"{path / FILE}: states of shape {tuple(seen_RTO.shape[1:])}, expected {shape}. Another policy's?"
        )
    return seen_RTO
