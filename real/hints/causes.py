"""Names the causes of a hint, and words them for the person."""

from __future__ import annotations

from enum import IntFlag


class HintCause(IntFlag):
    """Causes of a hint at a step, added up in the recorded field `hint`."""

    NONE = 0
    VALUE_DROP = 1
    """The value of the action has fallen."""
    DISAGREEMENT = 2
    """The critics disagree about the action."""
    NOVELTY = 4
    """The observation is outside the range of the training data."""
    NO_SUCCESS = 8
    """The episode is long, and its success is not in sight."""
    ACTION_SPREAD = 16
    """Sampled chunks differ."""


_SENTENCES = {
    HintCause.VALUE_DROP: "The policy expects less success than a moment ago",
    HintCause.DISAGREEMENT: "The policy is unsure whether its action leads to success",
    HintCause.NOVELTY: "The policy observes what was not in its training data",
    HintCause.NO_SUCCESS: "The episode is longer than solved ones, and success is not in sight",
    HintCause.ACTION_SPREAD: "The policy is unsure what to do next",
}


def hint_text(causes: HintCause) -> str:
    """A hint as a sentence for the person; empty without a cause."""
    found = [sentence for cause, sentence in _SENTENCES.items() if cause & causes]
    if not found:
        return ""
    rest = [f"{sentence[0].lower()}{sentence[1:]}" for sentence in found[1:]]
    return f"{'; '.join([found[0], *rest])}: consider taking over."
