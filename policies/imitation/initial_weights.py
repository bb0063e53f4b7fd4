"""Initialises a policy with the weights of a saved policy of the same family and shapes."""

from __future__ import annotations

from pathlib import Path

from policies.card import PolicyCard
from policies.checkpoint import read_card, read_weights
from policies.policy import ChunkPolicy
from robots.errors import HandoffError


def check_initial(card: PolicyCard, initial: Path) -> None:
    """Checks that a policy of `card` can start from the weights of the saved policy in the
    directory `initial`.

    Raises:
        HandoffError: no policy in the directory, or one of another family or anchor.
    """
    saved = read_card(initial)
    if saved.model.kind != card.model.kind:
        raise HandoffError(
            f"{initial}: a policy of family '{saved.model.kind}', expected '{card.model.kind}'."
        )
    if saved.anchor != card.anchor:
        raise HandoffError(
            f"{initial}: its actions are relative to '{saved.model.anchor_field}' (entry {saved.anchor}), expected "
            f"'{card.model.anchor_field}' (entry {card.anchor})."
        )


def load_initial_weights(module: ChunkPolicy, initial: Path, keep_normalizers: bool) -> None:
    """Loads the weights of the saved policy in the directory `initial`.

    Args:
        module: policy with fitted normalisers.
        initial: folder of a policy of the same family and shapes.
        keep_normalizers: whether to load its normalisers too; with other normalisers the inputs of
            the network change.

    Raises:
        HandoffError: no weights in the directory, or weights of another shape.
    """
    weights, initialised = read_weights(initial), module.state_dict()
    for name in sorted(initialised.keys() | weights.keys()):
        saved_shape = tuple(weights[name].shape) if name in weights else "absent"
        expected_shape = tuple(initialised[name].shape) if name in initialised else "absent"
        if saved_shape != expected_shape:
            raise HandoffError(
                f"{initial}: '{name}' is {saved_shape}, expected {expected_shape}. Do the sizes of both agree?"
            )
    loaded = {
        name: weight
        for name, weight in weights.items()
        if keep_normalizers or "normalize_" not in name
    }
    module.load_state_dict(initialised | loaded)
