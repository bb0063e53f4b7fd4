"""Options of the learners FastTD3 and PQL. Imports no torch.

Every default names its source: [C] is FastTD3's released code (arXiv 2505.22642), for
HumanoidBench; [Q] that of PQL (arXiv 2307.12983). Both are for thousands of environments on a GPU;
`configs/reach_fast_td3.yaml` has sizes for a laptop.
"""

from __future__ import annotations

from typing import Literal

from policies.rl.networks.config import MlpSizes
from robots.config import Count, Finite, LearningRate, NonNegative, Positive, PositiveShare, config
from robots.errors import HandoffError


@config
class PerEnvNoiseConfig:
    """Exploration noise with one standard deviation per environment; see
    `policies.rl.off_policy.exploration_noise`."""

    spread: Literal["uniform", "linear", "geometric"] = "uniform"
    """Distribution of the standard deviations. `uniform` samples them between the bounds at the
    start of each episode [C]; `linear` spaces them evenly over the environments and keeps them [Q];
    `geometric` does so with constant ratios, so that half of the environments lie below sqrt(low
    high) (our addition)."""
    low: Finite = 0.001
    """Smallest standard deviation [action units]; .001 [C], .05 [Q]."""
    high: Finite = 0.4
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
    atoms: Count = 101
    """Atoms K of the return distribution [C]; 51 in the distributional option of PQL [Q]."""
    low: Finite = -250.0
    """Lowest atom of the return distribution [reward] [C]; -10 in Playground [C] and PQL [Q]."""
    high: Finite = 250.0
    """Highest atom of the return distribution [reward] [C]."""
    learning_rate: LearningRate = 3e-4
    """Learning rate of the critics (AdamW) [C]; 5e-4 [Q]."""
    actor_learning_rate: LearningRate = 3e-4
    """Learning rate of the actor (AdamW)."""
    weight_decay: NonNegative = 0.1
    """Weight decay of AdamW for both networks [C]; torch's .01 [Q]."""
    max_grad_norm: Positive | None = None
    """Maximum gradient norm; None does not clip [C]. .5 [Q]."""
    tau: PositiveShare = 0.1
    """Polyak step size of the target critics per critic update [C]; .05 [Q]. There is no target
    actor."""
    target_noise: NonNegative = 0.001
    """Standard deviation of the noise on the target action [action units] [C]; .8 [Q]."""
    target_noise_clip: NonNegative = 0.5
    """Clip range of the target noise [action units] [C]; .2 [Q]."""
    critic_per_policy: Positive = 2.0
    """Critic updates per policy update, 1 / beta_p:v; 2 [C, Q]. Fractions accumulate exactly."""
    init_scale: Positive = 0.01
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
class PqlConfig(FastTd3Config):
    """PQL's networks and updates [Q], with its distributional critics."""

    critic: MlpSizes = MlpSizes(hidden=(512, 256, 128), activation="relu", layer_norm=False)
    """Layers of both critics."""
    actor: MlpSizes = MlpSizes(hidden=(512, 256, 128), activation="relu", layer_norm=False)
    """Layers of the actor."""
    atoms: Count = 51
    """Atoms K of the return distribution."""
    low: Finite = -10.0
    """Lowest atom of the return distribution [reward]."""
    high: Finite = 10.0
    """Highest atom of the return distribution [reward]."""
    learning_rate: LearningRate = 5e-4
    """Learning rate of the critics (AdamW)."""
    actor_learning_rate: LearningRate = 5e-4
    """Learning rate of the actor (AdamW)."""
    weight_decay: NonNegative = 0.01
    """Weight decay of AdamW for both networks; torch's default."""
    max_grad_norm: Positive | None = 0.5
    """Maximum gradient norm; None does not clip."""
    tau: PositiveShare = 0.05
    """Polyak step size of the target critics per critic update."""
    target_noise: NonNegative = 0.8
    """Standard deviation of the noise on the target action [action units]."""
    target_noise_clip: NonNegative = 0.2
    """Clip range of the target noise [action units]."""
    noise: PerEnvNoiseConfig = PerEnvNoiseConfig(spread="linear", low=0.05, high=0.8)
    """Exploration noise per environment."""
