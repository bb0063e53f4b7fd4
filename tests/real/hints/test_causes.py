"""Sentences of hints."""

from real.hints.causes import HintCause, hint_text


def test_every_cause_has_a_sentence_and_none_has_no_hint() -> None:
    assert hint_text(HintCause.NONE) == ""
    sentences = {hint_text(cause) for cause in HintCause}
    assert len(sentences) == len(HintCause)
    assert all(sentence.endswith(": consider taking over.") for sentence in sentences)


def test_several_causes_make_one_sentence() -> None:
    assert hint_text(HintCause.VALUE_DROP | HintCause.NOVELTY) == (
        "The policy expects less success than a moment ago; the policy observes what was not in its training data: "
        "consider taking over."
    )


def test_the_causes_of_a_step_fit_the_recorded_byte() -> None:
    assert sum(HintCause) <= 255
