"""WSRL: online learning that starts from offline weights and keeps no offline data (Zhou et al.,
arXiv 2412.07762).

The policy that was learned offline first fills an empty replay for some thousand steps while
nothing is updated. Then plain SAC with an ensemble learns from that replay alone. Without the
warm-up the critics forget on the first data.

Weights, target critics and temperature are taken over, as in the released code. Ours: optimisers
begin anew.
"""

from __future__ import annotations

from policies.rl.networks.config import MlpSizes
from policies.rl.off_policy.config import OnlineConfig, SacConfig
from policies.rl.off_policy.sac import Sac
from policies.rl.replay.transitions import Sizes
from robots.errors import HandoffError


def wsrl_sac(hidden: tuple[int, ...] = (256, 256)) -> SacConfig:
    """SAC as WSRL configures it, offline (under Cal-QL) and online [C]."""
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
    """How WSRL acts and learns: 5000 steps without updates, then one of four critic steps per step
    [C]."""
    return OnlineConfig(
        batch_size=256, demo_share=0.0, minibatches=4, training_starts=warm_up_steps
    )


def warm_started(offline: Sac, config: SacConfig, sizes: Sizes, seed: int = 0) -> Sac:
    """An online learner with the weights of an offline one.

    Args:
        offline: what was learned from data, such as `policies.rl.offline.calql.CalQl`.
        config: of the online learner; its networks must have the sizes of the offline one's.
        sizes: of the data.
        seed: of the online learner's noise.

    Raises:
        HandoffError: networks of other sizes.
    """
    online = Sac(config, sizes, seed)
    try:
        online.networks.load_state_dict(offline.networks.state_dict())
    except RuntimeError as error:
        raise HandoffError(
            f"wsrl: the offline learner's networks do not fit the online one's: {error}. Other layers, another number "
            "of critics or another task?"
        ) from error
    return online
