"""Names the random streams of one episode.

The initial state is drawn by `numpy.random.default_rng(seed)`, everything else that is random in
the episode by `numpy.random.default_rng([seed, stream])`. Changing a stream's number changes every
episode that uses it.
"""

from __future__ import annotations

from enum import IntEnum


class EpisodeStream(IntEnum):
    """Second entry of the seed sequence, after the episode's seed."""

    DOMAIN_RANDOMIZATION = 1
    """Masses, friction, gains, camera and every other randomised property."""
    RANDOM_AGENT = 1
    """Actions of the random agent. The value equals `DOMAIN_RANDOMIZATION`, so in randomised
    environments the two draw the same numbers."""
    OPERATOR = 2
    """Times at which the simulated operator notices, intervenes and releases, and the noise of its
    actions."""
    RECORDING = 3
    """Noise of scripted demonstrations; skills, speeds and durations of play."""
    RANDOM_WALK = 4
    """Paths of a random walk, recorded as negative examples for a success classifier."""
    LEAVING = 6
    """Paths on which the scripted expert leaves a solved state, also recorded as negative
    examples."""
    APPEARANCE = 7
    """Displacement of cameras, distractors, and the visual quantities of an appearance, each with a
    third entry of its own."""
    DYNAMICS = 8
    """Place of every uncertain value of the arm's dynamics between its bounds."""
