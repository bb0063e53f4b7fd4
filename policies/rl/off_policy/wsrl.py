"""Implements warm-start RL (WSRL): online RL from offline weights, without offline data (Zhou et
al., arXiv 2412.07762).

The policy learned offline first fills an empty replay buffer for a few thousand steps without
updates. Then SAC with a critic ensemble learns from this buffer only. Without the warm-up, the
critics forget on the first data.

Weights, target critics and temperature are copied, as in the released code [C]. Optimisers are
reset, which is our choice.

This module can be imported without torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from policies.rl.networks.config import MlpSizes
from policies.rl.off_policy.config import OnlineConfig, SacConfig
from robots.errors import HandoffError

if TYPE_CHECKING:
    from policies.rl.off_policy.sac import Sac
    from policies.rl.replay.transitions import Sizes

WARM_UP_STEPS = 5000
"""Environment steps of the warm-up [C]."""
OFFLINE_STATE = "offline.pt"
"""File beside a policy that was learned offline, from which online learning goes on."""


def wsrl_sac(hidden: tuple[int, ...] = (256, 256)) -> SacConfig:
    """Options of SAC in WSRL, both offline (for Cal-QL) and online [C]."""
    network = MlpSizes(hidden=hidden, activation="relu")
    return SacConfig(
        critic=network,
        actor=network,
        critics=10,
        subset=2,
        learning_rate=3e-4,
        actor_learning_rate=1e-4,
        temperature_learning_rate=1e-4,
        init_temperature=1.0,
        target_entropy=0.0,
        final_scale=1e-2,
    )


def wsrl_online(warm_up_steps: int = WARM_UP_STEPS) -> OnlineConfig:
    """Online options of WSRL: 5000 warm-up steps without updates, then one update with four critic
    steps per environment step [C]."""
    return OnlineConfig(
        batch_size=256, demo_share=0.0, minibatches=4, training_starts=warm_up_steps
    )


def load_offline(
    folder: Path, fields: Sequence[str], low: Sequence[float], high: Sequence[float]
) -> dict[str, Any]:
    """Networks of an offline learner: actor, critics, target critics, temperature and normalisation
    as a state for `warm_started`. `policies.rl.offline.saved_learner` writes the file.

    Args:
        folder: folder of the policy.
        fields: fields of the online learner's observation vector, in order.
        low: (A,) action of the environment that is the online learner's -1.
        high: (A,) action of the environment that is the online learner's 1.

    Raises:
        HandoffError: the policy has no critics, other observation fields, or actions of another
            scale.
    """
    from policies.checkpoint import read_state

    file = folder / OFFLINE_STATE
    state = read_state(file, OFFLINE_STATE)
    if state is None:
        raise HandoffError(
            f"wsrl: {file} does not exist. WSRL goes on from an actor with its critics, such as that of the stage "
            "`offline` with the algorithm cal_ql; an imitated policy has no critics."
        )
    if state["fields"] != list(fields):
        raise HandoffError(
            f"wsrl: the offline policy observes {state['fields']}, the session {list(fields)}. Set the same "
            "observation_fields in both stages."
        )
    centre, half_range = state["action_centre"].numpy(), state["action_half_range"].numpy()
    if not (np.allclose(centre - half_range, low) and np.allclose(centre + half_range, high)):
        raise HandoffError(
            f"wsrl: the offline learner's actions -1 and 1 are {centre - half_range} and {centre + half_range} of the "
            f"environment, the session's are {list(low)} and {list(high)}."
        )
    return state["networks"]


def warm_started(
    offline: Sac | Mapping[str, Any], config: SacConfig, sizes: Sizes, seed: int = 0
) -> Sac:
    """Online learner initialised with the weights of an offline learner.

    Args:
        offline: learner trained offline, such as `policies.rl.offline.calql.CalQl`, or the state of
            its networks.
        config: options of the online learner, with the same network sizes.
        sizes: sizes of observations and actions.
        seed: seed of the noise of the online learner.

    Raises:
        HandoffError: the networks have other sizes.
    """
    from policies.rl.off_policy.sac import Sac

    online = Sac(config, sizes, seed)
    networks = offline.networks.state_dict() if isinstance(offline, Sac) else offline
    try:
        online.networks.load_state_dict(networks)
    except RuntimeError as error:
        raise HandoffError(
            f"wsrl: the weights of the offline learner do not fit the online learner: {error}. Do layers, number of "
            "critics or task differ?"
        ) from error
    return online
