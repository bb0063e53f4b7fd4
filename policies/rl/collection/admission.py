"""Admits a new rollout while an earlier one is still learned from (AReaL, arXiv 2505.24298, section
5.1)."""

from __future__ import annotations

from dataclasses import dataclass

from robots.errors import HandoffError


@dataclass(frozen=True)
class Admission:
    """AReaL's rule: of N samples that have been begun, floor((N - 1) / B) <= v + eta at version v
    of the policy."""

    staleness: int
    """eta: updates that the policy of a sample may lie behind the one that learns from it; 0 is on
    policy."""
    batch: int = 1
    """B: samples of an update. Where whole rollouts are samples, one."""

    def __post_init__(self) -> None:
        if self.staleness < 0 or self.batch < 1:
            raise HandoffError(
                f"practice: a staleness of {self.staleness} updates of {self.batch} samples, expected 0 or more, of at "
                "least one."
            )

    def admits(self, begun: int, version: int) -> bool:
        """Whether one more sample may be begun.

        Args:
            begun: samples so far, all together.
            version: updates that were made.
        """
        return begun // self.batch <= version + self.staleness
