"""Configures where environments are simulated. Imports without torch."""

from __future__ import annotations

from typing import Literal

from robots.config import config
from robots.errors import HandoffError

Kind = Literal["collocated", "disaggregated", "hybrid"]
Strategy = Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]


@config
class ClusterConfig:
    """Simulators as actors of a Ray cluster, in a placement group of one bundle each."""

    address: str = "auto"
    """`HOST:PORT` of the head; `auto`: the cluster that this machine is part of, or that
    RAY_ADDRESS names; `local`: a new one of this machine alone."""
    strategy: Strategy = "SPREAD"
    """How Ray lays bundles on nodes; the strict ones cannot be kept when a node is lost, and then
    wait for another."""
    cores: float = 1.0
    """Cores per simulator."""
    gpus: float = 0.0
    """GPUs per simulator; a fraction shares one."""
    patience_s: float = 120.0
    """How long it may take until there is room for the simulators, also for those of a node that
    was lost."""

    def __post_init__(self) -> None:
        if self.cores <= 0.0 or self.gpus < 0.0 or self.patience_s <= 0.0:
            raise HandoffError(
                f"placement: a cluster with {self.cores:g} cores and {self.gpus:g} gpus for each simulator and a "
                f"patience of {self.patience_s:g} s, expected positive numbers, gpus 0 or more."
            )


@config
class PlacementConfig:
    """Which processes simulate, and whether the policy waits for them (RLinf, arXiv 2509.15965 and
    2510.06710).

    What is experienced and learned does not depend on it, but for the rounding of products of other
    batch sizes.
    """

    kind: Kind = "collocated"
    """`collocated`: one process simulates, infers and learns in turn. `disaggregated`: processes of
    their own simulate, in turn with the policy. `hybrid`: these simulate one part of the worlds
    while the policy infers for another."""
    parts: int = 2
    """Parts into which the environments are split, at least two; read for `hybrid`."""
    simulators: int = 1
    """Processes that simulate, each a share of every part; not read for `collocated`."""
    cluster: ClusterConfig | None = None
    """None: they are processes of this machine."""

    def __post_init__(self) -> None:
        if self.simulators < 1 or self.parts < 1 or (self.kind == "hybrid" and self.parts < 2):
            raise HandoffError(
                f"placement: {self.parts} parts of the worlds and {self.simulators} simulators, expected at least one "
                "of each, and for hybrid two parts: with one there is nothing to infer while it is simulated."
            )
        if self.cluster is not None and self.kind == "collocated":
            raise HandoffError(
                "placement: a cluster for collocated worlds, which are simulated in this process; expected "
                "disaggregated or hybrid."
            )

    @property
    def stages(self) -> int:
        """Parts that the worlds are really in."""
        return self.parts if self.kind == "hybrid" else 1
