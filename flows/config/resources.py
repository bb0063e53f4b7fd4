"""Defines what a stage needs of the computer that runs it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field

from robots.config import config
from robots.errors import HandoffError


@config
class Resources:
    """Share of a computer; stages run at once as far as the computer suffices for all of them."""

    cores: Annotated[int, Field(ge=1)] = 1
    """Processor cores, those of the stage's worker processes included."""
    memory_gb: Annotated[float, Field(ge=0)] = 0.0
    """Memory [GB]; 0 does not count."""
    gpus: Annotated[int, Field(ge=0)] = 0
    """Number of GPUs."""


def suffices(computer: Resources, needed: Iterable[Resources]) -> bool:
    """Whether a computer has what several stages need together."""
    shares = list(needed)
    return (
        sum(share.cores for share in shares) <= computer.cores
        and sum(share.memory_gb for share in shares) <= computer.memory_gb
        and sum(share.gpus for share in shares) <= computer.gpus
    )


def check_resources(stage: str, computer: Resources, needed: Resources) -> None:
    """Checks that a stage can run alone on a computer. More cores than there are make it slow, and
    are allowed.

    Raises:
        HandoffError: the computer has not the memory or the GPUs.
    """
    for name in ("memory_gb", "gpus"):
        asked, there = getattr(needed, name), getattr(computer, name)
        if asked > there:
            raise HandoffError(
                f"stage {stage}: resources.{name} is {asked:g}, this computer has {there:g}. Send it to another "
                "one by 'pool:', or ask for less."
            )
