"""The table of an episode's random streams: its values are results, so a changed one changes every
episode that was ever recorded or evaluated."""

from __future__ import annotations

import numpy as np

from sim.episode_streams import EpisodeStream


def test_the_streams_are_those_of_every_earlier_episode() -> None:
    assert {name: int(stream) for name, stream in EpisodeStream.__members__.items()} == {
        "DOMAIN_RANDOMIZATION": 1,
        "RANDOM_AGENT": 1,
        "OPERATOR": 2,
        "RECORDING": 3,
        "RANDOM_WALK": 4,
        "LEAVING": 6,
        "APPEARANCE": 7,
        "DYNAMICS": 8,
    }


def test_only_the_random_agent_shares_a_stream() -> None:
    shared = {name for name, stream in EpisodeStream.__members__.items() if stream.name != name}
    assert shared == {"RANDOM_AGENT"}


def test_a_stream_draws_what_its_bare_number_draws() -> None:
    named = np.random.default_rng([7, EpisodeStream.LEAVING])
    assert (named.random(4) == np.random.default_rng([7, 6]).random(4)).all()


def test_no_stream_repeats_the_start() -> None:
    start = np.random.default_rng(7).random()
    drawn = {np.random.default_rng([7, stream]).random() for stream in EpisodeStream}
    assert start not in drawn
    assert len(drawn) == len(set(EpisodeStream))
