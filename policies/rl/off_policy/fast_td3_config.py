"""Options of FastTD3 and PQL, and of learning a state task from nothing in simulated worlds.
Imports without torch.

Every default names its source: [C] is FastTD3's released code (arXiv 2505.22642), for
HumanoidBench; [Q] that of PQL (arXiv 2307.12983). Both are for thousands of worlds on a GPU;
`configs/reach_fast_td3.yaml` has a laptop's sizes.
"""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from policies.rl.collection.reward_shaping import PracticeReward
from policies.rl.networks.config import MlpSizes
from robots.config import config
from robots.errors import HandoffError
from robots.seed_ranges import TRAINING


@config
class MixedNoiseConfig:
    """Exploration: every world has a deviation of its own; see
    `policies.rl.off_policy.exploration_noise`."""

    spread: Literal["uniform", "linear", "geometric"] = "uniform"
    """`uniform`: drawn between the bounds, anew with every episode [C]; `linear`: evenly from the
    first world to the last, for good [Q]; `geometric`: likewise, with even ratios (ours: half of
    the worlds lie below sqrt(low high))."""
    low: float = 0.001
    """Smallest deviation [action units]; .001 [C], .05 [Q]."""
    high: float = 0.4
    """Largest; .4 [C], .8 [Q]. The same as `low`: one deviation for all."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.low <= self.high or (self.spread == "geometric" and self.low == 0.0):
            raise HandoffError(
                f"noise: deviations from {self.low} to {self.high}, expected 0 <= low <= high, and a geometric spread "
                "begins above 0."
            )


@config
class FastTd3Config:
    """TD3 with distributional critics for many worlds and large batches; the defaults are FastTD3's
    [C]."""

    critic: MlpSizes = MlpSizes(hidden=(1024, 512, 256), activation="relu", layer_norm=False)
    """Sizes of both critics [C]; PQL has 512, 256, 128 with ELU [Q]."""
    actor: MlpSizes = MlpSizes(hidden=(512, 256, 128), activation="relu", layer_norm=False)
    """[C]"""
    atoms: int = 101
    """K, of the return's distribution [C]; 51 in PQL's distributional option [Q]."""
    low: float = -250.0
    """Smallest return that can be told [reward] [C]; -10 in Playground [C] and PQL [Q]."""
    high: float = 250.0
    """Largest."""
    learning_rate: float = 3e-4
    """Learning rate of the critics (AdamW) [C]; 5e-4 [Q]."""
    actor_learning_rate: float = 3e-4
    """Learning rate of the actor (AdamW)."""
    weight_decay: float = 0.1
    """Weight decay of AdamW for both networks [C]; torch's .01 [Q]."""
    max_grad_norm: float | None = None
    """Gradients are scaled down to this norm where it is larger; None leaves them [C]. .5 [Q]."""
    tau: float = 0.1
    """Share of the critics that every critic update moves into their targets [C]; .05 [Q]. The
    actor has no target."""
    target_noise: float = 0.001
    """Deviation of the noise on the target's action [action units] [C]; .8 [Q]."""
    target_noise_clip: float = 0.5
    """Its bound [C]; .2 [Q]."""
    critic_per_policy: float = 2.0
    """Critic updates per policy update: 1 / beta_p:v. 2 [C, Q]; counts are exact for fractions,
    too."""
    init_scale: float = 0.01
    """Deviation of the initial weights of the actor's last layer [C]."""
    normalise: bool = True
    """Whether observations are shown less their running mean, over their running deviation [C,
    Q]."""
    noise: MixedNoiseConfig = MixedNoiseConfig()
    """Exploration noise per environment."""

    def __post_init__(self) -> None:
        if self.critic_per_policy < 1.0 or self.target_noise < 0.0 or self.target_noise_clip < 0.0:
            raise HandoffError(
                f"fast_td3: {self.critic_per_policy} critic updates per policy update, target noise "
                f"{self.target_noise} within {self.target_noise_clip}; expected at least 1, and no negative noise."
            )


@config
class ReinforceConfig:
    """A state task learned from nothing: worlds, data and learner in lockstep
    (`policies.rl.off_policy.train`)."""

    learner: FastTd3Config = field(default_factory=FastTd3Config)
    """Options of FastTD3."""
    fields: tuple[str, ...] = ()
    """Observed fields that the policy sees, in this order; empty takes all but pictures."""
    collections: int = 150_000
    """Steps of every world in all [C]."""
    batch_size: int = 32_768
    """Transitions per critic update [C]; 8,192 [Q]."""
    capacity: int = 51_200
    """Steps kept per world [C]; PQL keeps 5,000,000 in all [Q]."""
    discount: float = 0.99
    """Discount per control period [C, Q]."""
    n_step: int = 1
    """Rewards summed up before a value is looked at, fewer where an episode ends [C]; 8 in MTBench
    [C], 3 [Q]."""
    critic_per_collection: float = 2.0
    """Critic updates per step of all worlds: 1 / beta_a:v. 2 [C], 8 [Q]; counts are exact for
    fractions, too."""
    learning_starts: int = 10
    """Collections before the first update [C]; 32 [Q]."""
    random_collections: int = 0
    """Collections at the start whose actions are uniform; none [C], 32 [Q]."""
    reward: PracticeReward = field(default_factory=PracticeReward)
    """A task that pays per step and ends where it is solved wants `step`; see there."""
    save_every: int = 250
    """Collections between two states on the disk."""
    first_seed: int = TRAINING.start
    """Seed of the first start; protocols' starts lie below."""
    seed: int = 0
    """Seed of weights, exploration and minibatches."""
    threads: int = 1
    """Processor threads of torch."""

    def __post_init__(self) -> None:
        counts = (self.collections, self.batch_size, self.capacity, self.n_step, self.save_every)
        if (
            min(counts) < 1
            or self.critic_per_collection < 0.0
            or min(self.learning_starts, self.random_collections) < 0
        ):
            raise HandoffError(
                f"reinforce: collections, batch_size, capacity, n_step, save_every {counts}, critic_per_collection "
                f"{self.critic_per_collection}; expected at least 1 each, and no negative number."
            )


def fast_td3() -> ReinforceConfig:
    """FastTD3 as released."""
    return ReinforceConfig()


def pql() -> ReinforceConfig:
    """PQL's options [Q], with its distributional critics.

    Two things are FastTD3's: the target is one critic's whole distribution, where PQL's code takes
    the lesser probability of every atom, which sums up to less than 1; and layers end in ReLU, not
    ELU.
    """
    layers = MlpSizes(hidden=(512, 256, 128), activation="relu", layer_norm=False)
    learner = FastTd3Config(
        critic=layers,
        actor=layers,
        atoms=51,
        low=-10.0,
        high=10.0,
        learning_rate=5e-4,
        actor_learning_rate=5e-4,
        weight_decay=0.01,
        max_grad_norm=0.5,
        tau=0.05,
        target_noise=0.8,
        target_noise_clip=0.2,
        noise=MixedNoiseConfig(spread="linear", low=0.05, high=0.8),
    )
    return ReinforceConfig(
        learner=learner,
        batch_size=8192,
        n_step=3,
        critic_per_collection=8.0,
        learning_starts=32,
        random_collections=32,
    )
