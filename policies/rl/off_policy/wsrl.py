"""Implements warm-start RL (WSRL): online RL from offline weights, without offline data (Zhou et
al., arXiv 2412.07762).

The policy learned offline first fills an empty replay buffer for a few thousand steps without
updates. Then SAC with a critic ensemble learns from this buffer only. Without the warm-up, the
critics forget on the first data.

Weights, target critics and temperature are copied, as in the released code [C]. Optimisers are
reset, which is our choice.
"""

from __future__ import annotations

from policies.rl.networks.config import MlpSizes
from policies.rl.off_policy.config import OnlineConfig, SacConfig
from policies.rl.off_policy.sac import Sac
from policies.rl.replay.transitions import Sizes
from robots.errors import HandoffError


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


def wsrl_online(warm_up_steps: int = 5000) -> OnlineConfig:
    """Online options of WSRL: 5000 warm-up steps without updates, then one update with four critic
    steps per environment step [C]."""
    return OnlineConfig(
        batch_size=256, demo_share=0.0, minibatches=4, training_starts=warm_up_steps
    )


def warm_started(offline: Sac, config: SacConfig, sizes: Sizes, seed: int = 0) -> Sac:
    """Online learner initialised with the weights of an offline learner.

    Args:
        offline: learner trained offline, such as `policies.rl.offline.calql.CalQl`.
        config: options of the online learner, with the same network sizes.
        sizes: sizes of observations and actions.
        seed: seed of the noise of the online learner.

    Raises:
        HandoffError: the networks have other sizes.
    """
    online = Sac(config, sizes, seed)
    try:
        online.networks.load_state_dict(offline.networks.state_dict())
    except RuntimeError as error:
        raise HandoffError(
            f"wsrl: the weights of the offline learner do not fit the online learner: {error}. Do layers, number of "
            "critics or task differ?"
        ) from error
    return online
