"""Options of offline RL: IQL, Cal-QL, dynamics models and RL-100's offline PPO. Imports no torch.

Every default names its source: [C] is the released code of the method, [P] its paper.
"""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from policies.rl.networks.config import MlpSizes
from policies.rl.off_policy.config import SacConfig
from policies.rl.on_policy.config import DppoConfig
from policies.samplers.chain import ChainConfig
from robots.config import config


@config
class IqlConfig:
    """Implicit Q-learning and variants, which evaluate only actions in the data (arXiv 2110.06169);
    the defaults are those of the sparse mazes [C]."""

    kind: Literal["iql"] = "iql"
    value: Literal["expectile", "chi2", "tv", "gumbel"] = "expectile"
    """Loss of V: that of IQL (`expectile`), two of f-DVL (`chi2`, `tv`; arXiv 2302.08560) or that
    of XQL (`gumbel`); see `policies.rl.offline.value_losses`."""
    expectile: float = 0.9
    """Expectile, and lambda of chi2 and TV; IQL has .9 in mazes and .7 elsewhere [C]."""
    temperature: float = 1.0
    """Scale that divides the advantage in the chi2, TV and Gumbel losses [reward]; not used by the
    expectile loss."""
    released_chi2: bool = False
    """Whether chi2 follows f-DVL's code instead of the conjugate in its paper."""
    gumbel_clip: float = 7.0
    """Upper bound of the exponent of XQL [C]."""
    inverse_temperature: float = 10.0
    """Inverse temperature b of the weight exp(b (Q - V)) of an action: 10 in mazes, 3 in
    locomotion, .5 in kitchen [C]; 0 is behaviour cloning."""
    weight_clip: float = 100.0
    """Upper bound of the advantage weight [C]."""
    critics: int = 2
    """Critics in the ensemble; V and the actor use the minimum over the target critics [C]."""
    critic: MlpSizes = MlpSizes(activation="relu", layer_norm=False)
    """Layers of a critic."""
    value_network: MlpSizes = MlpSizes(activation="relu", layer_norm=False)
    """Layers of V."""
    actor: MlpSizes = MlpSizes(activation="relu", layer_norm=False)
    """Layers of the actor."""
    dropout: float = 0.0
    """Dropout probability of the actor's hidden units; .1 for small data sets (kitchen, Adroit)
    [C]."""
    huber: float | None = None
    """Threshold of the Huber loss of Q [reward]; 20 in f-DVL [C]. None uses the squared error."""
    learning_rate: float = 3e-4
    """Learning rate of Q and V (Adam) [C]."""
    actor_learning_rate: float = 3e-4
    """Learning rate of the actor (Adam)."""
    actor_decay_updates: int | None = None
    """Updates over which the actor's learning rate decays to 0 along half a cosine, 1,000,000 in
    the code; None keeps it constant."""
    tau: float = 0.005
    """Polyak step size of the target critics per update [C]."""
    log_std_min: float = -5.0
    """Lower bound of the actor's log standard deviations, which do not depend on the state [C]."""
    log_std_max: float = 2.0
    """Upper bound of the actor's log standard deviations."""


@config
class CalQlConfig:
    """Cal-QL (arXiv 2303.05479) and CQL (arXiv 2006.04779); the defaults are those of WSRL's
    offline pre-training [C]."""

    kind: Literal["calql"] = "calql"
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
    """Options of the SAC core, the same as those of WSRL's online phase [C]."""
    weight: float = 5.0
    """Weight of the conservative term; 1 on Adroit [C]."""
    calibrated: bool = True
    """Whether the conservative term is calibrated by returns of the data (Cal-QL); False is CQL."""
    actions: int = 10
    """Actions sampled per source in the conservative term: uniformly, from the policy at s, and
    from the policy at s' [C]."""
    target_actions: int = 10
    """Next actions over which the Bellman target takes the maximum [C]; 1 is the target of SAC."""
    gap: float | None = None
    """Target of the conservative term in the Lagrange form, 0.8 in Cal-QL's AntMaze [C]; None uses
    the fixed `weight`."""


@config
class DynamicsConfig:
    """Ensemble of learned dynamics models; sizes of RL-100 [C of a fork]."""

    members: int = 7
    """Models in the ensemble."""
    elites: int = 5
    """Number of models kept for prediction, those with the lowest error on held-out rows."""
    network: MlpSizes = MlpSizes(hidden=(400, 400, 400, 400), activation="relu", layer_norm=False)
    """Layers of a model."""
    learning_rate: float = 1e-3
    """Learning rate of the ensemble."""
    weight_decay: float = 1e-5
    """Weight decay of the ensemble."""
    batch_size: int = 256
    """Rows per model and update."""
    updates: int = 2000
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
    learning_rate: float = 1e-5
    """Learning rate of the policy; 1e-6 to 1e-5 in RL-100."""
    updates: int = 5000
    """Updates of the policy; 5,000 to 8,000 in RL-100."""
    batch_size: int = 512
    """Denoising steps per minibatch."""
    chains: int = 8192
    """Denoising chains sampled at a time (our choice); a single advantage is mostly noise, so few
    chains would fit that noise."""
    redraw_every: int = 100
    """Updates between two samplings of chains (our choice). Within one set of chains, the clip
    range limits how far the policy moves."""
    clip: float = 0.25
    """Initial clip range of the ratio."""
    last_clip: float = 0.05
    """Clip range to which `clip` falls linearly (our choice; the released code does not state its
    decay)."""
    max_grad_norm: float = 0.5
    """Maximum gradient norm."""
    gate: bool = True
    """Whether a policy that has not improved is reverted; false is the ablation."""
    gate_every: int = 50
    """Updates between two evaluations of the policy by the gate."""
    margin: float = 0.05
    """Relative improvement d / |J| that the gate requires. The achievable improvement depends on
    `gate_every` times the learning rate: .05 needs far more than 50 updates at 1e-5."""
    judged_steps: int = 5
    """Chunks simulated in the learned dynamics to evaluate the policy; 3 to 20 in RL-100."""
    judged_rows: int = 1000
    """Initial states of that evaluation (our choice)."""
