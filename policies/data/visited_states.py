"""States that a policy visited in fine-tuning or distillation, saved with its weights so that
students can be distilled on them.

Shape suffixes: R states, T observed steps, O observation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from robots.errors import HandoffError
from robots.language.text import INSTRUCTION, decode
from robots.storage.durable import explain_write_errors, write_atomically

FILE = "practised.safetensors"
MAX_STATES = 20_000
"""Maximum number of saved states; the newest are kept."""
MAX_BYTES = 2**29
"""Maximum size of the saved states [bytes]; of pictures, fewer are kept."""
_VECTOR = "seen"
_FIELD = "vector"
"""Name of the vectors where states have other fields, too."""


def save_visited_states(path: Path, states: Any) -> None:
    """Saves the newest states, normalised by the policy in the folder `path`.

    Args:
        path: folder of the policy.
        states: (R, T, O), encoded if the policy encodes its sensors, or a TensorDict of that
            (`policies.rl.on_policy.observations.VECTOR`) and of other observation tensors by name.

    Raises:
        HandoffError: a full disk.
    """
    from safetensors.torch import save

    fields, kept = _fields(states), most_states(states)
    with explain_write_errors(path, "the visited states were not saved"):
        parts = {name: part[-kept:].contiguous() for name, part in fields.items()}
        write_atomically(path / FILE, save(parts))


def most_states(states: Any) -> int:
    """Largest number of states like these that are kept; see `save_visited_states`."""
    one = sum(part[:1].nbytes for part in _fields(states).values())
    return min(MAX_STATES, max(1, MAX_BYTES // max(1, one)))


def _fields(states: Any) -> dict[str, Tensor]:
    return {_VECTOR: states} if isinstance(states, Tensor) else dict(states.items())


def load_visited_states(path: Path, shape: tuple[int, int]) -> Tensor | None:
    """Visited states (R, T, O) of the policy in the folder `path`; None where there are none.

    Args:
        path: folder of the policy.
        shape: (T, O) of the policy, `ChunkPolicy.encoded_shape`.

    Raises:
        HandoffError: a damaged file, or one of another policy.
    """
    fields = _read(path)
    if not fields:
        return None
    states_RTO = fields[_FIELD if _FIELD in fields else _VECTOR]
    if tuple(states_RTO.shape[1:]) != shape:
        raise HandoffError(
            f"{path / FILE}: states of shape {tuple(states_RTO.shape[1:])}, expected {shape}. "
            "Is the file of another policy?"
        )
    return states_RTO


def load_visited_instructions(path: Path) -> tuple[str, ...]:
    """Instruction of each state of `load_visited_states`; empty where none was observed.

    Raises:
        HandoffError: a damaged file.
    """
    fields = _read(path)
    return decode(fields[INSTRUCTION].numpy()) if INSTRUCTION in fields else ()


def _read(path: Path) -> dict[str, Tensor]:
    """Tensors of the file in the folder `path`; empty where there is none."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not (path / FILE).exists():
        return {}
    try:
        fields = load_file(path / FILE)
    except SafetensorError as error:
        raise _damaged(path, str(error)) from None
    if not fields.keys() & {_VECTOR, _FIELD}:
        raise _damaged(path, f"no entry '{_VECTOR}' or '{_FIELD}'")
    return fields


def _damaged(path: Path, cause: str) -> HandoffError:
    return HandoffError(f"{path / FILE}: damaged ({cause}). Was it cut short by a copy?")
