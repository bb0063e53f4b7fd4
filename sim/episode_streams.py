"""Keeps the random draws of one episode apart: who draws what from an episode's seed.

A start is drawn by `numpy.random.default_rng(seed)`, and everything else that chance decides in the
episode by `numpy.random.default_rng([seed, stream])`. The numbers decide what is drawn: a changed
one changes every episode that rests on it.
"""

from __future__ import annotations

from enum import IntEnum


class EpisodeStream(IntEnum):
    """Second entry of the seed sequence, behind the episode's seed."""

    DOMAIN_RANDOMIZATION = 1
    """Masses, friction, gains, camera and whatever else is randomised."""
    RANDOM_AGENT = 1
    """The actions of the agent that acts by chance. The same value as `DOMAIN_RANDOMIZATION`, so
    that in randomised environments the two draw the same numbers."""
    OPERATOR = 2
    """When the simulated operator notices, intervenes and lets go, and the noise of its actions."""
    RECORDING = 3
    """The noise of scripted demonstrations, and what is done in play, how fast and for how long."""
    RANDOM_WALK = 4
    """The ways of a robot that wanders, as negative examples for a success classifier."""
    LEAVING = 6
    """The ways on which the scripted expert leaves success, as negative examples likewise."""
