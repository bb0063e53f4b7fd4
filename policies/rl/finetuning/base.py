"""Bases of fine-tuning algorithms: their options, and defaults of methods that keep no replay data;
imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from robots.config import Count, Share, Whole, config
from robots.errors import HandoffError
from robots.interfaces import Progress

if TYPE_CHECKING:
    from policies.rl.finetuning.method import FinetuneMethod, FinetuneSetup


class FinetuneAlgorithm:
    """Base of the options of every fine-tuning algorithm.

    An algorithm outside the repository derives its options from this class, and a recipe names them
    by their import path: `algorithm: {kind: my_lab.methods.FilteredConfig}`. Its `kind` has that
    path as its default.
    """

    learns_from_demos: ClassVar[bool] = False
    """Whether the algorithm learns from the stage's demonstrations, which it then requires."""
    trains_frozen_parts: ClassVar[bool] = False
    """Whether the policy is loaded with the parameters trainable that its pretraining trained, such
    as adapters of a frozen backbone; for language-conditioned policies."""
    learns_beside: ClassVar[str | None] = None
    """What an actor beside the sampler of a frozen policy does, where the algorithm learns one:
    `chooses the initial noise`. Neither further fine-tuning nor on-policy distillation keeps such
    an actor. None for algorithms that train the policy."""

    @property
    def runs_on_device(self) -> bool:
        """Whether the algorithm can train on the device of environments that stay there."""
        return False

    def reward_discount(self) -> float:
        """Discount per action, with which the environments add up the rewards of a chunk."""
        raise NotImplementedError

    def method(self, setup: FinetuneSetup) -> FinetuneMethod:
        """The method with these options; only algorithms outside the repository implement this.

        Raises:
            HandoffError: a policy that the algorithm cannot fine-tune.
        """
        raise HandoffError(
            f"finetune: {type(self).__name__} has no method. Define `method(setup)`, which returns a FinetuneMethod."
        )


def check_runs_on_device(algorithm: FinetuneAlgorithm) -> None:
    """Checks that an algorithm can train on the device of environments that stay there.

    Raises:
        HandoffError: it runs on the host.
    """
    if not algorithm.runs_on_device:
        kind = getattr(algorithm, "kind", type(algorithm).__name__)
        raise HandoffError(
            f"finetune: the environments stay on a device, but the algorithm '{kind}' runs on the "
            "host with these options; expected 'vla' with staleness 0. Set resident: false."
        )


@config
class FrozenPolicyConfig(FinetuneAlgorithm):
    """Options that methods share which learn an actor beside the sampler of a frozen policy; see
    `policies.rl.finetuning.frozen_policy`."""

    steps: Count | None = None
    """Sampler steps of the policy, during fine-tuning and afterwards; None keeps its own number. 5
    in the code of DSRL."""
    discount: Share = 0.99
    """Discount per action, not per chunk. The code of DSRL discounts per chunk and adds up the
    rewards within one without a discount."""
    updates: Whole = 400
    """Updates of the learner after every rollout from the last of `warm_up` on. The code of DSRL
    makes 20 to 30 per decision of all four environments, that of RL tokens 5 per decision."""
    warm_up: Count = 2
    """Rollouts at the start before the first update, with the policy's own chunks, so that the
    critics first learn what the policy does: of standard normal initial noise, clipped to its limit
    (`dsrl`), or with exploration noise added (`rl_token`)."""

    def reward_discount(self) -> float:
        """See `FinetuneAlgorithm.reward_discount`."""
        return self.discount

    def check_sizes(self, rollouts: int, horizon: int) -> None:
        """Checks the options against the length of the fine-tuning and of the policy's chunks.

        Args:
            rollouts: rollouts of the fine-tuning.
            horizon: actions of a chunk.

        Raises:
            HandoffError: so many rollouts of `warm_up` that nothing would be learned.
        """
        if self.warm_up > rollouts:
            raise HandoffError(
                f"finetune: warm_up is {self.warm_up}, but there are {rollouts} rollouts, so nothing would be learned. "
                "Set algorithm.warm_up to at most rollouts."
            )


class OnlineFinetuning:
    """No-op hooks of `policies.rl.finetuning.method.FinetuneMethod`."""

    phase_due = False
    """See `FinetuneMethod.phase_due`; every rollout is learned from immediately."""

    def save_rollouts(self, out: Path) -> None:
        """See `FinetuneMethod.save_rollouts`; rollouts are not kept after their update."""

    def load_rollouts(self, out: Path) -> None:
        """See `FinetuneMethod.load_rollouts`."""

    def run_phase(self, identity: str, out: Path, progress: Progress) -> None:
        """See `FinetuneMethod.run_phase`."""
