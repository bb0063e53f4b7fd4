"""Reads evaluation protocols by name from `configs/protocol/`, or by path."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flows.config.files import CONFIGS, read_options
from flows.config.options import build
from sim.evaluation.protocol import Protocol


def read_protocol(name: str, folders: Sequence[Path] = ()) -> Protocol:
    """Reads a protocol.

    Args:
        name: a file in `configs/protocol/`, without its ending, or the path of a YAML file.
        folders: folders that may hold a folder `protocol`, searched before `configs/`.

    Raises:
        HandoffError: no such file, not YAML, an unknown key, or a protocol that cannot be run here.
    """
    places = [*folders, CONFIGS]
    return build(
        Protocol, read_options("protocol", name, places, "protocol"), Path(name).name, folders
    )


def push_t_published() -> Protocol:
    """Returns the published push-T protocol."""
    return read_protocol("push_t_published")
