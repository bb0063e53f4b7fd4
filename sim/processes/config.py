"""Configures the processes that simulate environments. It can be imported without torch."""

from __future__ import annotations

from typing import Literal

from robots.config import Count, NonNegative, Seconds, config
from robots.errors import HandoffError

Kind = Literal["collocated", "disaggregated", "hybrid"]
Strategy = Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]


@config
class ClusterConfig:
    """Simulators as actors of a Ray cluster, in a placement group of one bundle each."""

    address: str = "auto"
    """Address of the cluster: `HOST:PORT` of its head node; `auto`: the cluster of this machine or
    of RAY_ADDRESS; `local`: a new cluster on this machine only."""
    strategy: Strategy = "SPREAD"
    """Ray's strategy for placing bundles on nodes; with a strict one, the loss of a node requires a
    replacement."""
    cores: NonNegative = 1.0
    """Cores per simulator."""
    gpus: NonNegative = 0.0
    """GPUs per simulator; with a fraction, several simulators share one."""
    patience_s: Seconds = 120.0
    """Maximum time until resources for the simulators are free [s], including replacements for a
    lost node."""

    def __post_init__(self) -> None:
        if self.cores <= 0.0 or self.gpus < 0.0 or self.patience_s <= 0.0:
            raise HandoffError(
                f"placement: a cluster with {self.cores:g} cores and {self.gpus:g} gpus for each simulator and a "
                f"patience of {self.patience_s:g} s, expected positive numbers, gpus 0 or more."
            )


@config
class PlacementConfig:
    """Placement of simulation, inference and learning (RLinf, arXiv 2509.15965 and 2510.06710).

    It does not affect the collected data or the learned weights, except for rounding differences of
    products with other batch sizes.
    """

    kind: Kind = "collocated"
    """Kind of placement. `collocated`: one process simulates, infers and learns in turn.
    `disaggregated`: separate processes simulate, in turn with the policy. `hybrid`: separate
    processes simulate one part of the environments while the policy infers for another."""
    parts: Count = 2
    """Number of parts into which the environments are split, at least two; used only by
    `hybrid`."""
    simulators: Count = 1
    """Number of simulator processes, each with some environments of every part; not used by
    `collocated`."""
    cluster: ClusterConfig | None = None
    """Ray cluster of the simulators; None runs them on this machine."""

    def __post_init__(self) -> None:
        if self.simulators < 1 or self.parts < 1 or (self.kind == "hybrid" and self.parts < 2):
            raise HandoffError(
                f"placement: {self.parts} parts of the environments and {self.simulators} simulators, "
                "expected at least one "
                "of each, and for hybrid two parts: with one there is nothing to infer while it is simulated."
            )
        if self.cluster is not None and self.kind == "collocated":
            raise HandoffError(
                "placement: a cluster for collocated environments, which are simulated in this process; expected "
                "disaggregated or hybrid."
            )

    @property
    def stages(self) -> int:
        """Number of parts that are actually used."""
        return self.parts if self.kind == "hybrid" else 1
