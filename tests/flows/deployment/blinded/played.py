"""Comparisons that are played by chance instead of at an arm."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flows.deployment.blinded.config import BlindedConfig
from flows.deployment.blinded.rounds import Attempt, Counting, Standing, standing
from flows.deployment.blinded.sealed_order import ComparedPolicy, SealedOrder


def sealed(secret: str, policies: int = 2, **options: object) -> SealedOrder:
    """An order of policies that are named a, b, c.."""
    names = "abcdefgh"[:policies]
    compared = tuple(ComparedPolicy(name, 64 * name) for name in names)
    return SealedOrder(secret, compared, BlindedConfig(**options))  # type: ignore[arg-type]


def attempt(
    episode: int,
    pair: int,
    place: int,
    success: bool = True,
    counting: Counting = Counting.COUNTS,
) -> Attempt:
    return Attempt(episode, pair, place, counting, success, "none", False, None)


def outcomes(
    order: SealedOrder, rates: Sequence[float], seed: int, place_effect: float = 0.0
) -> list[Attempt]:
    """An episode of every policy in every pair.

    Args:
        order: the hidden order, with the number of pairs.
        rates: probability of success of every policy.
        seed: seed of the outcomes.
        place_effect: by how much the probability is lower at each later place.
    """
    rng = np.random.default_rng(seed)
    played: list[Attempt] = []
    for pair in range(order.config.pairs):
        for place, policy in enumerate(order.order(pair)):
            won = rng.random() < rates[policy] - place_effect * place
            played.append(attempt(len(played), pair, place, bool(won)))
    return played


def stands(order: SealedOrder, attempts: Sequence[Attempt]) -> Standing:
    return standing(attempts, order.order, order.config, len(order.policies))


def played_out(order: SealedOrder, rates: Sequence[float], seed: int) -> list[Attempt]:
    """Episodes up to the end of the comparison, one after another as a session plays them."""
    rng = np.random.default_rng(seed)
    played: list[Attempt] = []
    while (turn := stands(order, played).next) is not None:
        won = bool(rng.random() < rates[turn.policy])
        played.append(attempt(len(played), turn.pair, turn.place, won))
    return played
