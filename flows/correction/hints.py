"""Gives hints to the person of a correction session, and refuses sources that it does not have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from flows.correction.config import CorrectConfig
from policies.rl.hil.config import HgDaggerConfig
from real.hil.rewards import ClassifierReward, RewardSource
from real.hints.config import CorrectionHints
from robots.errors import HandoffError

if TYPE_CHECKING:
    from policies.rl.hil.make_learner import Publish
    from real.hil.hints import ActorHints


def check_hints(config: CorrectConfig, sources: Mapping[str, Any]) -> None:
    """Refuses sources of hints that the session does not have.

    Args:
        config: options of the session.
        sources: inputs of the stage.

    Raises:
        HandoffError: a source without its critics or classifier.
    """
    hints = config.hints
    if hints.reads_critics and isinstance(config.algorithm, HgDaggerConfig):
        raise HandoffError(
            "correct: hints.value and hints.disagreement need critics, which hg_dagger has not. Use hints.novelty or "
            "hints.success."
        )
    if hints.disagreement is not None and not isinstance(config.algorithm, HgDaggerConfig):
        critics = config.algorithm.sac.critics
        if critics < 2:
            raise HandoffError(
                f"correct: hints.disagreement compares critics, algorithm.sac.critics is {critics}, expected 2 or more."
            )
    if hints.success is not None and "classifier" not in sources:
        raise HandoffError(
            f"correct: hints.success needs the input 'classifier', the stage has {sorted(sources)}. Remove "
            "hints.success."
        )


def session_hints(
    config: CorrectionHints, rate_hz: float, rewards: RewardSource, show: Callable[[str], None]
) -> ActorHints | None:
    """Hints of a session; None without a source.

    Args:
        config: sources.
        rate_hz: steps per second.
        rewards: source of the rewards, whose classifier may be a source of hints.
        show: called with the sentence of the hint, empty without one.
    """
    from real.hil.hints import ActorHints

    if not config.sources:
        return None
    threshold = rewards.threshold if isinstance(rewards, ClassifierReward) else None
    return ActorHints(config, rate_hz, threshold, show)


def published(config: CorrectConfig, publish: Publish) -> Publish:
    """Returns what the learner publishes: with hints that need them, the critics as well.

    Args:
        config: options of the session.
        publish: exports the actor alone, as in a saved policy.
    """
    from policies.rl.actor_export import sac_actor_and_critics

    return sac_actor_and_critics if config.hints.reads_critics else publish
