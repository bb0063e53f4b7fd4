"""Stage `draw_family`: draws the members of a family of environments from a design."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.artifacts import Family, Output
from robots.errors import HandoffError
from robots.interfaces import Progress
from sim.environment_families.draw import DrawFamilyConfig, check_ranges

FIXED_SEEDS = True


def check(config: DrawFamilyConfig, sources: Mapping[str, Any]) -> None:
    """Refuses a family without parameters, and parameters without a range."""
    if not config.factors:
        raise HandoffError(
            "draw_family: factors: 0 are given, expected one or more, such as {payload: {kind: arm, what: payload, "
            "low: 0, high: 2}}."
        )
    check_ranges(config.factors, corners=config.corners)


def run(config: DrawFamilyConfig, out: Path, progress: Progress) -> Output[Family]:
    """Draws the members of a family of environments, and writes `family.json` to `out`."""
    from sim.environment_families.draw import draw_family
    from sim.environment_families.members import write_family

    family = draw_family(config)
    write_family(family, out)
    return Output({"members": len(family.members), "factors": list(family.factors)})
