"""Shares the members of a matrix out between `make test` and `make nightly`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def in_every_run(members: Iterable[Any], *chosen: Any) -> list[Any]:
    """Parameters of a test or fixture: `chosen` belong to every run, the other members to `make
    nightly`. A tuple has the values of several arguments.

    Raises:
        ValueError: something chosen is not a member.
    """
    members = list(members)
    if unknown := [one for one in chosen if one not in members]:
        raise ValueError(f"{unknown} are not among {members}")
    return [
        one
        if one in chosen
        else pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=pytest.mark.nightly)
        for one in members
    ]
