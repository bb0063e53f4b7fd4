"""Reads the weights of a transformers model from a local folder, and checks them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from robots.errors import HandoffError


def load_pretrained(
    read: Callable[..., Any],
    folder: Path,
    what: str,
    unread: frozenset[str] = frozenset(),
    attention: str | None = "sdpa",
    **options: Any,
) -> Any:
    """The model in a folder, in float32.

    Args:
        read: `from_pretrained` of one of transformers' classes.
        folder: folder that `save_pretrained` wrote.
        what: what the weights belong to, for messages.
        unread: weights that may be missing or have another shape.
        attention: implementation of attention; None leaves it to transformers, for models without.
        options: further options of `read`.

    Raises:
        HandoffError: the files cannot be read, or a weight is missing or has another shape.
    """
    import torch
    from safetensors import SafetensorError

    try:
        with _quietly():
            model, report = read(
                folder,
                dtype=torch.float32,
                attn_implementation=attention,
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
                **options,
            )
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:300]
        raise HandoffError(
            f"{folder}: the {what}'s weights cannot be read ({reason}). Was it copied whole?"
        ) from None
    wrong = sorted(map(str, {*report["missing_keys"], *report["mismatched_keys"]} - unread))
    if wrong:
        raise HandoffError(
            f"{folder}: {len(wrong)} weights are missing or have another shape, the first is {wrong[0]}."
        )
    return model


@contextmanager
def _quietly() -> Iterator[None]:
    """Silences transformers' progress bar and its list of unused layers."""
    from transformers.utils import logging

    progress_bar, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if progress_bar:
            logging.enable_progress_bar()
