"""Defines a claim: a recipe, the seeds with which it was trained, and figures of its evaluations
with the bars that were set for them.

    # The student of a flow policy keeps its teacher's success.
    recipe: push_t_flow
    overrides: [~twin, ~gate]
    seeds: [0, 1]
    figures:
      student: {stage: scores@student, at_least: 0.5}
      loss by distillation: {stage: scores@student, than: scores@teacher, at_least: -0.03}

What the claim says is the comment at the top of the file. A figure without a bar is reported, and
decides nothing.
"""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Literal

from flows.config.files import CONFIGS, ENDINGS, available, first_comment, read_yaml
from flows.config.options import build
from robots.config import Finite, Seed, config
from robots.errors import HandoffError, suggest

CLAIMS = "claims"
"""Folder of claims in `configs/`."""


@config
class Figure:
    """A figure of a claim: the mean of one number over the start states of an evaluation."""

    stage: str
    """Stage of the recipe that plays the episodes: `evaluate`, or `deploy` at the twin."""
    of: Literal["success", "score"] = "success"
    """The number of one episode: 1 if it was solved and 0 otherwise, or the protocol's score."""
    than: str = ""
    """Stage of the same start states whose numbers are subtracted, start by start; empty subtracts
    nothing."""
    at_least: Finite | None = None
    """The bar: smallest mean; None sets none."""
    at_most: Finite | None = None
    """Largest mean, for a negative control; None sets none."""
    seeds: tuple[Seed, ...] | None = None
    """Learning seeds for which this figure was measured; None for those of the claim."""

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages whose episodes the figure needs."""
        return (self.stage, self.than) if self.than else (self.stage,)

    def meets(self, mean: float) -> bool | None:
        """Whether a mean meets the bar; None without one."""
        if self.at_least is None and self.at_most is None:
            return None
        return (self.at_least is None or mean >= self.at_least) and (
            self.at_most is None or mean <= self.at_most
        )

    @property
    def bar(self) -> str:
        """The bar in words; empty without one."""
        bars = (("at least", self.at_least), ("at most", self.at_most))
        return ", ".join(f"{words} {bar:g}" for words, bar in bars if bar is not None)


@config
class Claim:
    """A claim that `handoff reproduce --claim` repeats."""

    recipe: str
    """Recipe that makes and evaluates the policies."""
    overrides: tuple[str, ...] = ()
    """Changes of its options; `~STAGE` leaves out a stage that no figure needs."""
    seed: str = "seed"
    """Option of the recipe that takes the learning seed."""
    seeds: tuple[Seed, ...] = (0,)
    """Learning seeds."""
    figures: dict[str, Figure] = field(default_factory=dict)
    """Figures by the name that tables show."""

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages whose episodes the figures need, each once."""
        named = (stage for figure in self.figures.values() for stage in figure.stages)
        return tuple(dict.fromkeys(named))


def claim_file(name: str) -> Path:
    """Returns the file of a claim.

    Args:
        name: a file in `configs/claims/` without its ending, or the path of a YAML file.

    Raises:
        HandoffError: no such file.
    """
    path = Path(name) if name.endswith(ENDINGS) else CONFIGS / CLAIMS / f"{name}.yaml"
    if path.is_file():
        return path
    if name.endswith(ENDINGS):
        raise HandoffError(f"claim {path} does not exist. Is it relative to another folder?")
    raise HandoffError(f"claim '{name}' does not exist, {suggest(name, available(CLAIMS))}")


def read_claim(name: str) -> Claim:
    """Reads a claim, named as for `claim_file`.

    Raises:
        HandoffError: no such file, an unknown key or an invalid value, no figure, or seeds of a
            figure that the claim has not.
    """
    path = claim_file(name)
    claim = build(Claim, read_yaml(path, "claim"), "")
    where = f"claim {path.stem}"
    if not claim.figures:
        raise HandoffError(f"{where}: has no figures, so nothing would be compared.")
    if not claim.seeds:
        raise HandoffError(f"{where}: has no seeds, so nothing would run.")
    for label, figure in claim.figures.items():
        surplus = sorted({*(figure.seeds or ())} - {*claim.seeds})
        if surplus:
            raise HandoffError(
                f"{where}: figure '{label}' has the seeds {surplus}, the claim has {[*claim.seeds]}."
            )
    return claim


def statement(name: str) -> str:
    """What a claim says: the first sentence of the comment at the top of its file."""
    return first_comment(claim_file(name))
