"""Where the parts of practice run on one machine. Imports without torch."""

from __future__ import annotations

from typing import Literal

from robots.config import config
from robots.errors import HandoffError

Kind = Literal["collocated", "disaggregated", "hybrid"]


@config
class PlacementConfig:
    """Which processes simulate, and whether the policy waits for them (RLinf, arXiv 2509.15965 and 2510.06710).

    What is experienced and learned does not depend on it, but for the rounding of products of other batch sizes.
    """

    kind: Kind = "collocated"
    """`collocated`: one process simulates, infers and learns in turn. `disaggregated`: processes of their own simulate,
    in turn with the policy. `hybrid`: these simulate one part of the worlds while the policy infers for another."""
    parts: int = 2
    """Of the worlds, at least two; read for `hybrid`."""
    simulators: int = 1
    """Processes that simulate, each a share of every part; not read for `collocated`."""

    def __post_init__(self) -> None:
        if self.simulators < 1 or self.parts < 1 or (self.kind == "hybrid" and self.parts < 2):
            raise HandoffError(
                f"placement: {self.parts} parts of the worlds and {self.simulators} simulators, expected at least one "
                "of each, and for hybrid two parts: with one there is nothing to infer while it is simulated."
            )

    @property
    def stages(self) -> int:
        """Parts that the worlds are really in."""
        return self.parts if self.kind == "hybrid" else 1
