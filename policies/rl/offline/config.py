"""Options of offline RL: IQL and its variants, Cal-QL, EDP, trajectory weighting, dynamics models
and RL-100's offline PPO. Imports no torch.

Every default names its source: [C] is the released code of the method, [P] its paper.
"""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from pydantic import Discriminator, Field

from policies.networks.config import PictureFeaturesConfig
from policies.policy_config import DiffusionPolicyConfig
from policies.rl.networks.config import MlpSizes
from policies.rl.off_policy.config import SacConfig
from policies.rl.on_policy.config import DppoConfig
from policies.rl.replay.trajectory_weighting import TrajectoryWeightingConfig
from policies.samplers.chain import ChainConfig
from policies.training.config import LoggingConfig
from robots.config import (
    Count,
    Finite,
    LearningRate,
    NonNegative,
    Positive,
    Repetitions,
    Seed,
    Whole,
    Workload,
    config,
)
from robots.errors import HandoffError


@config
class InSampleCriticsConfig:
    """Q and V that are learned only from actions in the data (arXiv 2110.06169); the loss of V
    stands in the classes below."""

    critics: Annotated[int, Field(ge=1)] = 2
    """Critics in the ensemble; V and the actor use the minimum over the target critics [C]."""
    critic: MlpSizes = MlpSizes(activation="relu", layer_norm=False)
    """Layers of a critic."""
    value_network: MlpSizes = MlpSizes(activation="relu", layer_norm=False)
    """Layers of V."""
    huber: Annotated[float, Field(gt=0.0)] | None = None
    """Threshold of the Huber loss of Q [reward]; 20 in f-DVL [C]. None uses the squared error."""
    learning_rate: LearningRate = 3e-4
    """Learning rate of Q and V (Adam) [C]."""
    tau: Annotated[float, Field(gt=0.0, le=1.0)] = 0.005
    """Polyak step size of the target critics per update [C]."""


@config
class ExpectileCriticsConfig(InSampleCriticsConfig):
    """Critics of IQL, whose V is an expectile of Q."""

    expectile: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.9
    """Expectile of V; IQL has .9 in mazes and .7 elsewhere [C]."""


@config
class GumbelCriticsConfig(InSampleCriticsConfig):
    """Critics of XQL, whose V is a soft maximum of Q (arXiv 2301.02328)."""

    temperature: Annotated[float, Field(gt=0.0)] = 1.0
    """Scale that divides the advantage in the loss of V [reward]."""
    gumbel_clip: Positive = 7.0
    """Upper bound of the exponent [C]."""


@config
class DualCriticsConfig(InSampleCriticsConfig):
    """Critics of f-DVL, whose V minimises the dual of an f-divergence (arXiv 2302.08560)."""

    divergence: Literal["chi2", "tv"] = "tv"
    """Divergence: chi-squared or total variation; see `policies.rl.offline.value_losses`."""
    weight: Annotated[float, Field(gt=0.5, lt=1.0)] = 0.9
    """Weight lambda of the conjugate; .5 gives the mean of Q."""
    temperature: Annotated[float, Field(gt=0.0)] = 1.0
    """Scale that divides the advantage in the loss of V [reward]."""
    released_chi2: bool = False
    """Whether chi2 follows the released code instead of the conjugate in the paper."""


@config
class WeightedActorConfig:
    """Gaussian actor that is trained by advantage-weighted regression; the defaults are those of
    the sparse mazes [C]."""

    inverse_temperature: Annotated[float, Field(ge=0.0)] = 10.0
    """Inverse temperature b of the weight exp(b (Q - V)) of an action: 10 in mazes, 3 in
    locomotion, .5 in kitchen [C]; 0 is behaviour cloning."""
    weight_clip: Annotated[float, Field(ge=1.0)] = 100.0
    """Upper bound of the advantage weight [C]."""
    actor: MlpSizes = MlpSizes(activation="relu", layer_norm=False)
    """Layers of the actor."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Dropout probability of the actor's hidden units; .1 for small data sets (kitchen, Adroit)
    [C]."""
    actor_learning_rate: LearningRate = 3e-4
    """Learning rate of the actor (Adam)."""
    actor_decay_updates: Annotated[int, Field(ge=1)] | None = None
    """Updates over which the actor's learning rate decays to 0 along half a cosine, 1,000,000 in
    the code; None keeps it constant."""
    log_std_min: Finite = -5.0
    """Lower bound of the actor's log standard deviations, which do not depend on the state [C]."""
    log_std_max: Finite = 2.0
    """Upper bound of the actor's log standard deviations."""


@config
class StateLearnerConfig:
    """Recorded steps that a learner on state vectors trains on, one action per decision."""

    observation_fields: tuple[str, ...] = ("keypoints", "agent")
    """Observation fields that are flattened and concatenated in this order into the observation
    vector."""
    image_fields: tuple[str, ...] = ()
    """Cameras whose pictures are observed, as features of a frozen network; `*` takes every
    camera."""
    image_features: PictureFeaturesConfig = field(default_factory=PictureFeaturesConfig)
    """Features of the pictures, which follow the observation vector."""
    discount: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.99
    """Discount per action [C]."""
    n_step: Annotated[int, Field(ge=1)] = 1
    """Steps of the n-step return."""
    failures_end: bool = True
    """Whether an unsolved episode ends with value 0, as in HIL-SERL's code, instead of
    bootstrapping from the value of its last observation."""
    updates: Repetitions = 100_000
    """Number of updates; 1,000,000 in IQL [C]."""
    batch_size: Annotated[int, Field(ge=1)] = 256
    """Transitions per update; 1024 in f-DVL [C]."""


@config
class IqlConfig(ExpectileCriticsConfig, WeightedActorConfig, StateLearnerConfig):
    """Implicit Q-learning (arXiv 2110.06169)."""

    kind: Literal["iql"] = "iql"


@config
class XqlConfig(GumbelCriticsConfig, WeightedActorConfig, StateLearnerConfig):
    """Extreme Q-learning (XQL, arXiv 2301.02328)."""

    kind: Literal["xql"] = "xql"


@config
class FDvlConfig(DualCriticsConfig, WeightedActorConfig, StateLearnerConfig):
    """Dual value learning with an f-divergence (f-DVL, arXiv 2302.08560)."""

    kind: Literal["f_dvl"] = "f_dvl"


InSampleConfig = IqlConfig | XqlConfig | FDvlConfig
"""Options of the methods that never evaluate an action outside the data."""


@config
class CalQlConfig(StateLearnerConfig):
    """Cal-QL (arXiv 2303.05479) and CQL (arXiv 2006.04779); the defaults are those of WSRL's
    offline pre-training [C]."""

    kind: Literal["cal_ql"] = "cal_ql"
    sac: SacConfig = SacConfig(
        critic=MlpSizes(activation="relu"),
        actor=MlpSizes(activation="relu"),
        critics=10,
        subset=2,
        actor_learning_rate=1e-4,
        temperature_learning_rate=1e-4,
        init_temperature=1.0,
        target_entropy=0.0,
        final_scale=1e-2,
    )
    """Options of the SAC core, the same as those of WSRL's online phase [C]. A gripper is one of
    the continuous entries."""
    weight: Annotated[float, Field(ge=0.0)] = 5.0
    """Weight of the conservative term; 1 on Adroit [C]."""
    calibrated: bool = True
    """Whether the conservative term is calibrated by returns of the data (Cal-QL); False is CQL."""
    actions: Annotated[int, Field(ge=1)] = 10
    """Actions sampled per source in the conservative term: uniformly, from the policy at s, and
    from the policy at s' [C]."""
    target_actions: Annotated[int, Field(ge=1)] = 10
    """Next actions over which the Bellman target takes the maximum [C]; 1 is the target of SAC."""
    gap: Finite | None = None
    """Target of the conservative term in the Lagrange form, 0.8 in Cal-QL's AntMaze [C]; None uses
    the fixed `weight`."""

    def __post_init__(self) -> None:
        if self.sac.gripper is not None or self.sac.backup_entropy:
            raise HandoffError(
                "cal-ql: a gripper critic and entropy in the target are not supported; set sac.gripper to None and "
                "sac.backup_entropy to False."
            )


StateAlgorithm = Annotated[IqlConfig | XqlConfig | FDvlConfig | CalQlConfig, Discriminator("kind")]
"""Algorithms that learn a policy of single actions on state vectors."""


@config
class TrajectoryWeightedConfig:
    """Another algorithm on minibatches that favour trajectories with high returns (Hong et al.,
    ICLR 2023); with `inverse_temperature: 0` in the learner, weighted behaviour cloning."""

    kind: Literal["trajectory_weighting"] = "trajectory_weighting"
    weighting: TrajectoryWeightingConfig = TrajectoryWeightingConfig()
    """Sampling weights of the trajectories."""
    learner: StateAlgorithm = IqlConfig()
    """Algorithm that trains on the weighted minibatches."""


@config
class QGradientConfig:
    """Objective of EDP that maximises Q of the predicted action (TD3)."""

    kind: Literal["td3"] = "td3"
    q_weight: Annotated[float, Field(ge=0.0)] = 2.0
    """Weight lambda of the Q term, which is divided by the mean of |Q|; 0 is behaviour cloning
    [C]."""


@config
class CriticRegressionConfig:
    """Objective of EDP that weights the actions in the data by Q over samples of the policy
    (CRR)."""

    kind: Literal["crr"] = "crr"
    inverse_temperature: Annotated[float, Field(ge=0.0)] = 3.0
    """Inverse temperature b of the weight exp(b (Q - V)) [C]."""
    weight_clip: Annotated[float, Field(ge=1.0)] = 100.0
    """Upper bound of the weight."""
    samples: Annotated[int, Field(ge=1)] = 4
    """Policy samples whose mean Q estimates V; our choice."""


@config
class ImplicitWeightConfig:
    """Objective of EDP that weights the actions in the data by Q over a learned V (IQL)."""

    kind: Literal["iql"] = "iql"
    expectile: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.7
    """Expectile of V [C]."""
    inverse_temperature: Annotated[float, Field(ge=0.0)] = 3.0
    """Inverse temperature b of the weight exp(b (Q - V)); 3 in locomotion, 10 in mazes [C]."""
    weight_clip: Annotated[float, Field(ge=1.0)] = 100.0
    """Upper bound of the weight."""


EdpObjective = Annotated[
    QGradientConfig | CriticRegressionConfig | ImplicitWeightConfig, Discriminator("kind")
]
"""Forms of EDP's policy objective [P]."""


@config
class EdpConfig:
    """Diffusion policy that is improved by Q through a one-step prediction of the clean chunk (EDP,
    arXiv 2305.20081)."""

    kind: Literal["edp"] = "edp"
    policy: DiffusionPolicyConfig = field(default_factory=DiffusionPolicyConfig)
    """Fields, chunk, network and sampler of the policy; its critics evaluate the executed part of a
    chunk."""
    objective: EdpObjective = ImplicitWeightConfig()
    """Policy objective."""
    discount: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.99
    """Discount per action, not per chunk."""
    failures_end: bool = True
    """Whether an unsolved episode ends with value 0, as in HIL-SERL's code, instead of
    bootstrapping from the value of its last observation."""
    critics: Annotated[int, Field(ge=1)] = 2
    """Critics in the ensemble."""
    critic: MlpSizes = MlpSizes(hidden=(256, 256, 256), activation="relu", layer_norm=False)
    """Layers of a critic, and of V in the form `iql`."""
    learning_rate: LearningRate = 3e-4
    """Learning rate of all networks (Adam) [C]."""
    tau: Annotated[float, Field(gt=0.0, le=1.0)] = 0.005
    """Polyak step size of the target networks per update."""
    target_policy_every: Annotated[int, Field(ge=1)] = 5
    """Updates between two Polyak steps of the target policy [C], which is the one that is saved."""
    target_policy_after: Annotated[int, Field(ge=0)] = 1000
    """Updates during which the target policy is a copy of the policy [C]."""
    updates: Repetitions = 100_000
    """Number of updates; 2,000,000 in EDP [C]."""
    batch_size: Annotated[int, Field(ge=1)] = 256
    """Chunks per update."""

    def __post_init__(self) -> None:
        if self.policy.language is not None:
            raise HandoffError(
                "edp: policy.language is set, expected none: the critics observe the vector alone."
            )
        if self.policy.objective != "diffusion" or self.policy.sensor_fields:
            raise HandoffError(
                f"edp: policy.objective is '{self.policy.objective}' with sensors {list(self.policy.sensor_fields)}, "
                "expected a diffusion on state vectors: EDP begins with new weights, and would leave encoders of "
                "pictures untrained. Improve a pretrained policy with offline_ppo."
            )


@config
class DynamicsConfig:
    """Ensemble of learned dynamics models; sizes of RL-100 [C of a fork]."""

    members: Count = 7
    """Models in the ensemble."""
    elites: Count = 5
    """Number of models kept for prediction, those with the lowest error on held-out rows."""
    network: MlpSizes = MlpSizes(hidden=(400, 400, 400, 400), activation="relu", layer_norm=False)
    """Layers of a model."""
    learning_rate: LearningRate = 1e-3
    """Learning rate of the ensemble."""
    weight_decay: NonNegative = 1e-5
    """Weight decay of the ensemble."""
    batch_size: Count = 256
    """Rows per model and update."""
    updates: Whole = 2000
    """Updates of the ensemble."""


RL100_CHAIN = ChainConfig(min_std=0.1, max_std=0.8, min_log_prob_std=0.1, reduce="sum")
"""Noise and log-probabilities of RL-100, except for the minimum standard deviation: .0067 there, .1
here as in DPPO. The gradient of a denoising step grows with 1 / std, and noise of .0067 at the last
step is too small to change the value of an action."""


@config
class OfflinePpoConfig:
    """Offline PPO stage of RL-100 (arXiv 2510.14830); defaults of the released fork unless stated
    otherwise."""

    denoising: DppoConfig = field(default_factory=lambda: DppoConfig(steps=10, chain=RL100_CHAIN))
    """Steps and noise of the denoising chain."""
    learning_rate: LearningRate = 1e-5
    """Learning rate of the policy; 1e-6 to 1e-5 in RL-100."""
    updates: Annotated[Whole, Workload()] = 5000
    """Updates of the policy; 5,000 to 8,000 in RL-100."""
    batch_size: Count = 512
    """Denoising steps per minibatch."""
    chains: Count = 8192
    """Denoising chains sampled at a time (our choice); a single advantage is mostly noise, so few
    chains would fit that noise."""
    redraw_every: Count = 100
    """Updates between two samplings of chains (our choice). Within one set of chains, the clip
    range limits how far the policy moves."""
    clip: Positive = 0.25
    """Initial clip range of the ratio."""
    last_clip: Positive = 0.05
    """Clip range to which `clip` falls linearly (our choice; the released code does not state its
    decay)."""
    max_grad_norm: Positive = 0.5
    """Maximum gradient norm."""
    gate: bool = True
    """Whether a policy that has not improved is reverted; false is the ablation."""
    gate_every: Count = 50
    """Updates between two evaluations of the policy by the gate."""
    margin: NonNegative = 0.05
    """Relative improvement d / |J| that the gate requires. The achievable improvement depends on
    `gate_every` times the learning rate: .05 needs far more than 50 updates at 1e-5."""
    judged_steps: Count = 5
    """Chunks simulated in the learned dynamics to evaluate the policy; 3 to 20 in RL-100."""
    judged_rows: Count = 1000
    """Initial states of that evaluation (our choice)."""


OFFLINE_LAYERS = MlpSizes(hidden=(512, 512), activation="relu", layer_norm=True)
"""Layers of the critics of offline PPO."""


@config
class OfflinePpoAlgorithmConfig:
    """Offline PPO of RL-100 on a pretrained diffusion policy: critics and dynamics of the data,
    then gated PPO over denoising chains (arXiv 2510.14830)."""

    kind: Literal["offline_ppo"] = "offline_ppo"
    discount: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.99
    """Discount per action, not per chunk."""
    failures_end: bool = True
    """Whether an unsolved episode ends with value 0, as in HIL-SERL's code, instead of
    bootstrapping from the value of its last observation."""
    critics: ExpectileCriticsConfig = ExpectileCriticsConfig(
        expectile=0.7,
        critics=4,
        critic=OFFLINE_LAYERS,
        value_network=OFFLINE_LAYERS,
        learning_rate=1e-3,
        tau=0.05,
    )
    """Options of the critics of the data; as in fine-tuning by RL-100, a larger tau than published
    suits the few updates."""
    critic_updates: Annotated[int, Field(ge=1)] = 5000
    """Updates of the critics."""
    critic_batch: Annotated[int, Field(ge=1)] = 256
    """Transitions per update of the critics."""
    dynamics: DynamicsConfig = field(default_factory=DynamicsConfig)
    """Dynamics ensemble of the gate."""
    ppo: OfflinePpoConfig = field(default_factory=OfflinePpoConfig)
    """Options of the updates of the policy and of the gate."""


OfflineAlgorithm = Annotated[
    IqlConfig
    | XqlConfig
    | FDvlConfig
    | CalQlConfig
    | EdpConfig
    | OfflinePpoAlgorithmConfig
    | TrajectoryWeightedConfig,
    Discriminator("kind"),
]
"""Algorithms of the stage `offline`, discriminated by `kind`."""


@config
class OfflineRunConfig(LoggingConfig):
    """Options of an offline run that do not depend on the algorithm."""

    log_every: Annotated[int, Field(ge=1)] = 200
    """Updates between entries of the loss curve; checkpoints are written at such updates only."""
    checkpoint_seconds: Annotated[float, Field(ge=0.0)] = 20.0
    """Wall-clock seconds between checkpoints, rounded up to the next entry of the loss curve."""
    threads: Annotated[int, Field(ge=1)] = 1
    """CPU threads of torch."""
    seed: Seed = 0
    """Seed of initial weights, minibatches and noise."""
