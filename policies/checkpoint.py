"""Saves and loads policies and training states. Files are replaced atomically, so a crash leaves
the old one or the new one.

A policy is `config.json` (its card) and `policy.safetensors` (float32 weights and normalisers). A
training state is a torch file, read with `weights_only=True`, so that loading never runs code.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from policies.card import PolicyCard
from robots.config import to_plain, validate
from robots.errors import HandoffError
from robots.storage.durable import explain_write_errors, write_atomically

CARD, WEIGHTS = "config.json", "policy.safetensors"


def save_policy(
    path: Path,
    card: PolicyCard,
    weights: dict[str, Tensor],
    files: Mapping[str, bytes] | None = None,
) -> None:
    """Writes a policy into the directory `path`; the card is written last, so that a folder with a
    card is complete.

    Args:
        path: existing directory.
        card: metadata of the policy.
        weights: a state dictionary.
        files: the module's `extra_files`.
    """
    from safetensors.torch import save

    tensors = {name: tensor.detach().float().cpu().contiguous() for name, tensor in weights.items()}
    with explain_write_errors(path, "the policy was not saved"):
        for name, data in (files or {}).items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path / name, data)
        write_atomically(path / WEIGHTS, save(tensors))
        write_atomically(path / CARD, json.dumps(to_plain(card), indent=2).encode())


def read_card(path: Path) -> PolicyCard:
    """The card of the policy in the directory `path`.

    Raises:
        HandoffError: the card is missing, damaged or of an unsupported version.
    """
    try:
        values = json.loads((path / CARD).read_text())
    except FileNotFoundError:
        raise HandoffError(
            f"{path}: no {CARD}, so no policy is here. Did its training finish?"
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise HandoffError(
            f"{path / CARD}: not JSON ({error}). Was the file cut short by a copy?"
        ) from None
    card = validate(PolicyCard, _upgraded(values), CARD)
    if card.version != 3:
        raise HandoffError(
            f"{path / CARD}: version {card.version}, this build reads 1 to 3. Train the policy again."
        )
    return card


def _upgraded(values: Any) -> Any:
    """Upgrades a card of version 1 (one family, one network) or 2 (one family) to version 3."""
    if not (isinstance(values, dict) and isinstance(values.get("model"), dict)):
        return values
    if values.get("version") == 1:
        sizes = ("width", "blocks", "time_embedding")
        model = {key: value for key, value in values["model"].items() if key not in sizes}
        network = {"kind": "mlp"} | {
            key: values["model"][key] for key in sizes if key in values["model"]
        }
        values = values | {"version": 2, "model": model | {"network": network}}
    if values.get("version") == 2:
        values = values | {"version": 3, "model": {"kind": "diffusion"} | values["model"]}
    return values


def read_weights(path: Path) -> dict[str, Tensor]:
    """The weights of the policy in the directory `path`.

    Raises:
        HandoffError: the file is missing or damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path / WEIGHTS)
    except FileNotFoundError:
        raise HandoffError(
            f"{path}: no {WEIGHTS} next to {CARD}. Was the directory copied incompletely?"
        ) from None
    except SafetensorError as error:
        raise HandoffError(
            f"{path / WEIGHTS}: damaged ({error}). Was the file cut short by a copy?"
        ) from None


def digest_file(file: Path) -> str:
    """Digest (hex sha256) of a file's bytes."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def save_state(file: Path, state: dict[str, Any]) -> None:
    """Replaces a training state; it may hold tensors, numbers and text in plain containers."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    with explain_write_errors(file, "the run will resume from the previous checkpoint"):
        write_atomically(file, buffer.getvalue())


def read_state(file: Path, identity: str) -> dict[str, Any] | None:
    """The training state in `file`, tensors on the CPU; None when there is none, or its identity is
    not `identity`.

    Raises:
        HandoffError: the file is damaged.
    """
    if not file.exists():
        return None
    # The visited states of a language-conditioned policy are a TensorDict, which torch refuses to
    # load until its module has been imported; other policies run without that package.
    with suppress(ImportError):
        import tensordict  # noqa: F401

    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        reason = str(error).splitlines()[0]
        raise HandoffError(f"{file}: damaged ({reason}). Remove it to start again.") from None
    return state if state["identity"] == identity else None
