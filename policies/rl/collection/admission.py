"""Admits a new rollout while the policy still learns from an earlier one (AReaL, arXiv 2505.24298,
section 5.1)."""

from __future__ import annotations

from dataclasses import dataclass

from robots.errors import HandoffError


@dataclass(frozen=True)
class Admission:
    """AReaL's rule for N started samples: floor((N - 1) / B) <= v + eta at policy version v."""

    staleness: int
    """eta: updates by which the acting policy may lag the learning one; 0 is on-policy."""
    batch: int = 1
    """B: samples per update; 1 where a sample is a whole rollout."""

    def __post_init__(self) -> None:
        if self.staleness < 0 or self.batch < 1:
            raise HandoffError(
                f"finetune: staleness is {self.staleness} updates and the batch {self.batch} samples, expected "
                "staleness >= 0 and batch >= 1."
            )

    def admits(self, begun: int, version: int) -> bool:
        """Whether one more sample may start.

        Args:
            begun: samples started so far.
            version: updates made so far.
        """
        return begun // self.batch <= version + self.staleness
