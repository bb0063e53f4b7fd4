"""Options of FastTD3 and PQL, and of RL from scratch in simulated environments. Imports no torch.

Every default names its source: [C] is FastTD3's released code (arXiv 2505.22642), for
HumanoidBench; [Q] that of PQL (arXiv 2307.12983). Both are for thousands of environments on a GPU;
`configs/reach_fast_td3.yaml` has sizes for a laptop.
"""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from policies.rl.collection.reward_shaping import RewardShaping
from policies.rl.networks.config import MlpSizes
from robots.config import config
from robots.errors import HandoffError
from robots.seed_ranges import TRAINING


@config
class PerEnvNoiseConfig:
    """Exploration noise with one standard deviation per environment; see
    `policies.rl.off_policy.exploration_noise`."""

    spread: Literal["uniform", "linear", "geometric"] = "uniform"
    """Distribution of the standard deviations. `uniform` samples them between the bounds at the
    start of each episode [C]; `linear` spaces them evenly over the environments and keeps them [Q];
    `geometric` does so with constant ratios, so that half of the environments lie below sqrt(low
    high) (our addition)."""
    low: float = 0.001
    """Smallest standard deviation [action units]; .001 [C], .05 [Q]."""
    high: float = 0.4
    """Largest standard deviation [action units]; .4 [C], .8 [Q]. If equal to `low`, all
    environments share one."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.low <= self.high or (self.spread == "geometric" and self.low == 0.0):
            raise HandoffError(
                f"noise: standard deviations from {self.low} to {self.high}, expected 0 <= low <= high, and low > 0 "
                "for a geometric spread."
            )


@config
class FastTd3Config:
    """TD3 with distributional critics for many environments and large batches; the defaults are
    FastTD3's [C]."""

    critic: MlpSizes = MlpSizes(hidden=(1024, 512, 256), activation="relu", layer_norm=False)
    """Layers of both critics [C]; PQL has 512, 256, 128 with ELU [Q]."""
    actor: MlpSizes = MlpSizes(hidden=(512, 256, 128), activation="relu", layer_norm=False)
    """Layers of the actor [C]."""
    atoms: int = 101
    """Atoms K of the return distribution [C]; 51 in the distributional option of PQL [Q]."""
    low: float = -250.0
    """Lowest atom of the return distribution [reward] [C]; -10 in Playground [C] and PQL [Q]."""
    high: float = 250.0
    """Highest atom of the return distribution [reward] [C]."""
    learning_rate: float = 3e-4
    """Learning rate of the critics (AdamW) [C]; 5e-4 [Q]."""
    actor_learning_rate: float = 3e-4
    """Learning rate of the actor (AdamW)."""
    weight_decay: float = 0.1
    """Weight decay of AdamW for both networks [C]; torch's .01 [Q]."""
    max_grad_norm: float | None = None
    """Maximum gradient norm; None does not clip [C]. .5 [Q]."""
    tau: float = 0.1
    """Polyak step size of the target critics per critic update [C]; .05 [Q]. There is no target
    actor."""
    target_noise: float = 0.001
    """Standard deviation of the noise on the target action [action units] [C]; .8 [Q]."""
    target_noise_clip: float = 0.5
    """Clip range of the target noise [action units] [C]; .2 [Q]."""
    critic_per_policy: float = 2.0
    """Critic updates per policy update, 1 / beta_p:v; 2 [C, Q]. Fractions accumulate exactly."""
    init_scale: float = 0.01
    """Standard deviation of the initial weights of the actor's last layer [C]."""
    normalise: bool = True
    """Whether observations are normalised by their running mean and standard deviation [C, Q]."""
    noise: PerEnvNoiseConfig = PerEnvNoiseConfig()
    """Exploration noise per environment."""

    def __post_init__(self) -> None:
        if self.critic_per_policy < 1.0 or self.target_noise < 0.0 or self.target_noise_clip < 0.0:
            raise HandoffError(
                f"fast_td3: {self.critic_per_policy} critic updates per policy update, target noise "
                f"{self.target_noise} and clip {self.target_noise_clip}; expected at least 1, 0 and 0."
            )


@config
class RlFromScratchConfig:
    """RL from scratch on a task with state observations, with environments and learner in lockstep
    (`policies.rl.off_policy.train`)."""

    learner: FastTd3Config = field(default_factory=FastTd3Config)
    """Options of FastTD3."""
    fields: tuple[str, ...] = ()
    """Observation fields of the policy, in this order; empty takes all except images."""
    collections: int = 150_000
    """Number of collections; one collection is one step of every environment [C]."""
    batch_size: int = 32_768
    """Transitions per critic update [C]; 8,192 [Q]."""
    capacity: int = 51_200
    """Replay capacity per environment [steps] [C]; PQL keeps 5,000,000 steps in total [Q]."""
    discount: float = 0.99
    """Discount per control period [C, Q]."""
    n_step: int = 1
    """Steps of the n-step return, fewer where an episode ends [C]; 8 in MTBench [C], 3 [Q]."""
    critic_per_collection: float = 2.0
    """Critic updates per collection, 1 / beta_a:v; 2 [C], 8 [Q]. Fractions accumulate exactly."""
    learning_starts: int = 10
    """Collections before the first update [C]; 32 [Q]."""
    random_collections: int = 0
    """Collections at the start with uniform random actions; none [C], 32 [Q]."""
    reward: RewardShaping = field(default_factory=RewardShaping)
    """Reward shaping. If a task rewards every step and success ends the episode, set its `step`
    penalty; see there."""
    save_every: int = 250
    """Collections between two checkpoints."""
    first_seed: int = TRAINING.start
    """Seed of the first initial state; the seeds of evaluation protocols lie below it."""
    seed: int = 0
    """Seed of weights, exploration and minibatches."""
    threads: int = 1
    """CPU threads of torch."""

    def __post_init__(self) -> None:
        counts = (self.collections, self.batch_size, self.capacity, self.n_step, self.save_every)
        if (
            min(counts) < 1
            or self.critic_per_collection < 0.0
            or min(self.learning_starts, self.random_collections) < 0
        ):
            raise HandoffError(
                f"reinforce: collections, batch_size, capacity, n_step, save_every {counts}, critic_per_collection "
                f"{self.critic_per_collection}, learning_starts {self.learning_starts}, random_collections "
                f"{self.random_collections}; expected at least 1 for the first five and at least 0 for the others."
            )


def fast_td3() -> RlFromScratchConfig:
    """Options of FastTD3 as released [C]."""
    return RlFromScratchConfig()


def pql() -> RlFromScratchConfig:
    """PQL's options [Q], with its distributional critics.

    Two choices remain those of FastTD3. The target is the whole distribution of one critic; PQL's
    code takes the minimum of the probabilities per atom, which sum to less than 1. Activations are
    ReLU, not ELU.
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
        noise=PerEnvNoiseConfig(spread="linear", low=0.05, high=0.8),
    )
    return RlFromScratchConfig(
        learner=learner,
        batch_size=8192,
        n_step=3,
        critic_per_collection=8.0,
        learning_starts=32,
        random_collections=32,
    )
