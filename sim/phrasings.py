"""Puts the instruction to reach a marker in other words, in sets for training and for tests.

A policy that is trained on the set `trained` alone has read none of the sentences of the other
sets. `unseen` has other sentences with the same colour words, `synonyms` other colour words in
sentences of the training, `negated` a second colour that is not meant, and `nameless` no colour:
the control, in which every marker is as likely as any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

PHRASINGS: Mapping[str, tuple[str, ...]] = {
    "trained": (
        "reach the {} marker",
        "go to the {} marker",
        "move to the {} sphere",
        "touch the {} ball",
        "bring the hand to the {} marker",
        "point at the {} dot",
        "stop at the {} target",
        "the {} one",
    ),
    "unseen": (
        "please approach the {} sphere",
        "I want you at the {} marker",
        "head over to the {} spot now",
        "the {} ball is your goal",
        "put your fingertips on the {} thing",
        "could you travel to the {} dot?",
        "{} is where you should be",
        "navigate towards the {} target",
    ),
    "synonyms": ("reach the {} marker", "touch the {} ball"),
    "negated": (
        "reach the {} marker, not the {other} one",
        "do not go to the {other} marker, go to the {} marker",
        "avoid the {other} ball and touch the {} ball",
    ),
    "nameless": ("reach the marker", "go to the marker", "move to the sphere", "touch the ball"),
}
"""Sentences by the name of the set; `{}` is the colour, `{other}` that of another marker."""

SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "red": ("crimson", "scarlet", "ruby"),
    "green": ("emerald", "lime", "olive"),
    "blue": ("azure", "navy", "cobalt"),
    "yellow": ("golden", "lemon", "amber"),
}
"""Other words for the colours of `sim.tasks.pick_by_name.COLOURS`."""


def sentences(phrasing: str, colour: str, colours: Sequence[str]) -> tuple[str, ...]:
    """The sentences of a set that ask for the marker `colour`, each once.

    Args:
        phrasing: a name in `PHRASINGS`.
        colour: colour of the target marker.
        colours: colours of all markers.
    """
    words = SYNONYMS[colour] if phrasing == "synonyms" else (colour,)
    others = [other for other in colours if other != colour]
    return tuple(
        dict.fromkeys(
            form.format(word, other=other)
            for form in PHRASINGS[phrasing]
            for word in words
            for other in others
        )
    )
