"""Options of this package."""

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
    """Learning from the data's own actions; the defaults are IQL's on sparse mazes [C] (arXiv
    2110.06169)."""

    kind: Literal["iql"] = "iql"
    value: Literal["expectile", "chi2", "tv", "gumbel"] = "expectile"
    """The loss of V: IQL's, two of f-DVL (arXiv 2302.08560) and XQL's; see
    `policies.rl.offline.value_losses`."""
    level: float = 0.9
    """w of the expectile, lambda of chi2 and TV. IQL .9 in mazes, .7 elsewhere [C]."""
    temperature: float = 1.0
    """Advantage that counts as 1 for chi2, TV and Gumbel [reward]; the expectile has none."""
    released_chi2: bool = False
    """Takes chi2 as f-DVL's code has it and not the conjugate of its paper."""
    gumbel_clip: float = 7.0
    """Bound on XQL's exponent [C]."""
    inverse_temperature: float = 10.0
    """b of the weight exp(b (Q - V)) of an action. 10 in mazes, 3 locomotion, .5 kitchen [C]; 0
    clones behaviour."""
    weight_clip: float = 100.0
    """Bound on that weight [C]."""
    critics: int = 2
    """Members of the ensemble; V and the actor look at their targets' minimum [C]."""
    critic: MlpSizes = MlpSizes(activation="relu", layer_norm=False)
    """Sizes of a critic."""
    value_network: MlpSizes = MlpSizes(activation="relu", layer_norm=False)
    """Sizes of V."""
    actor: MlpSizes = MlpSizes(activation="relu", layer_norm=False)
    """Sizes of the actor."""
    dropout: float = 0.0
    """Share of the actor's hidden units that an update leaves out; .1 on small data (kitchen,
    Adroit) [C]."""
    huber: float | None = None
    """Error of Q beyond which its loss grows linearly [reward]; 20 in f-DVL [C], None squares
    all."""
    learning_rate: float = 3e-4
    """Learning rate of Q and V (Adam) [C]."""
    actor_learning_rate: float = 3e-4
    """Learning rate of the actor (Adam)."""
    actor_decay_updates: int | None = None
    """Updates over which the actor's rate falls to 0 along half a cosine, 1,000,000 in the code;
    None keeps it."""
    tau: float = 0.005
    """Share of the critics that every update moves into their targets (Polyak) [C]."""
    log_std_min: float = -5.0
    """Lower bound of the actor's log standard deviations, which do not depend on the state [C]."""
    log_std_max: float = 2.0
    """Upper bound of the actor's log standard deviations."""


@config
class CalQlConfig:
    """Cal-QL (arXiv 2303.05479), and CQL (arXiv 2006.04779), as WSRL pretrains with it [C]."""

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
    """The core: the same as online in WSRL [C]."""
    weight: float = 5.0
    """Weight of the conservative term; 1 on Adroit [C]."""
    calibrated: bool = True
    """False is CQL."""
    actions: int = 10
    """Drawn at random, from the policy at s, and from it at s': three times as many in all [C]."""
    target_actions: int = 10
    """Next actions whose largest value is the target [C]; 1 is plain."""
    gap: float | None = None
    """Value to which the Lagrange form scales the conservative term; 0.8 in Cal-QL's AntMaze [C].
    None leaves `weight` alone."""


@config
class DynamicsConfig:
    """Learned dynamics; RL-100's sizes [C of a fork]."""

    members: int = 7
    """Members of the ensemble."""
    elites: int = 5
    """Members that predict held-out rows best; they alone are used."""
    network: MlpSizes = MlpSizes(hidden=(400, 400, 400, 400), activation="relu", layer_norm=False)
    """Sizes of a member."""
    learning_rate: float = 1e-3
    """Learning rate of the ensemble."""
    weight_decay: float = 1e-5
    """Weight decay of the ensemble."""
    batch_size: int = 256
    """Rows per member and update."""
    updates: int = 2000
    """Updates of the ensemble."""


RL100_CHAIN = ChainConfig(min_std=0.1, max_std=0.8, min_log_prob_std=0.1, reduce="sum")
"""Noise and log-probabilities of RL-100, but for the least deviation: .0067 there, .1 as in DPPO
here. A step's gradient grows with 1 / std, and the last step's noise at .0067 is too small to
change what an action is worth."""


@config
class OfflinePpoConfig:
    """RL-100's offline stage (arXiv 2510.14830); defaults of the released fork unless said
    otherwise."""

    walk: DppoConfig = field(default_factory=lambda: DppoConfig(steps=10, chain=RL100_CHAIN))
    """Steps and noise of the denoising chain."""
    learning_rate: float = 1e-5
    """1e-6 to 1e-5."""
    updates: int = 5000
    """5,000 to 8,000."""
    batch_size: int = 512
    """Rows, of one denoising step each."""
    chains: int = 8192
    """Denoising chains per draw (our choice); a single advantage is mostly noise, so few chains
    would fit that noise."""
    redraw_every: int = 100
    """Updates between two draws; ours. By chains of one draw the policy moves no further than the
    clip lets it."""
    clip: float = 0.25
    """Initial clip range of the ratio."""
    last_clip: float = 0.05
    """Clip range to which `clip` falls linearly (our choice; the released code does not state its
    decay)."""
    max_grad_norm: float = 0.5
    """Norm to which the gradient is clipped."""
    gate: bool = True
    """Whether a policy that is not better is taken back; false is the ablation."""
    gate_every: int = 50
    """Updates."""
    margin: float = 0.05
    """d / |J|: by how much better it must be judged. What a period can gain hangs on `gate_every`
    times the rate: .05 wants far longer periods than 50 updates at 1e-5."""
    judged_steps: int = 5
    """3 to 20 decisions in the learned dynamics."""
    judged_rows: int = 1000
    """States from which it is judged; ours."""
