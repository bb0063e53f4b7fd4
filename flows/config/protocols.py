"""Reads evaluation protocols by name from `configs/protocol/`, or by path."""

from __future__ import annotations

from flows.config.files import read_file
from sim.evaluation.protocol import Protocol


def read_protocol(name: str) -> Protocol:
    """Reads a protocol.

    Args:
        name: a file in `configs/protocol/`, without its ending, or the path of a YAML file.

    Raises:
        HandoffError: no such file, not YAML, an unknown key, or a protocol that cannot be run here.
    """
    return read_file(Protocol, name, group="protocol")


def push_t_published() -> Protocol:
    """Returns the published push-T protocol."""
    return read_protocol("push_t_published")
