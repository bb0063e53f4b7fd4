"""Options of this package."""

from __future__ import annotations

from typing import Literal

from policies.rl.networks.config import MlpSizes
from policies.rl.off_policy.config import SacConfig
from robots.config import config


@config
class EdpConfig:
    """A diffusion policy that climbs Q through a one-step guess of the clean action (EDP, arXiv
    2305.20081)."""

    kind: Literal["edp"] = "edp"
    objective: Literal["td3", "crr", "iql"] = "td3"
    """How Q enters: by its gradient (td3), or as a weight on the data's actions (crr, iql) [P]."""
    q_weight: float = 2.0
    """lambda of td3's term, which is divided by the mean of |Q|; 0 clones behaviour [C]."""
    level: float = 0.7
    """Expectile of V (iql) [C]."""
    inverse_temperature: float = 3.0
    """b of the weight exp(b (Q - V)) (crr, iql) [C]."""
    weight_clip: float = 100.0
    """Bound on the advantage weight."""
    crr_samples: int = 4
    """Actions of the policy whose mean Q is crr's V; our choice."""
    schedule: Literal["vp", "linear", "cosine"] = "vp"
    """Noise schedule: vp as in Diffusion-QL and EDP [C], linear in DDPM's betas, cosine as in
    `policies.samplers.ddim`."""
    levels: int = 100
    """K [C]; 1000 with few `steps` is the paper's other choice."""
    steps: int | None = None
    """Sampler steps: None takes all K levels by DDPM [C]; fewer steps use DDIM, the first-order
    DPM-solver."""
    candidates: int = 50
    """Actions drawn per observation when acting, of which Q chooses one [C]; 1 does not choose."""
    choose: Literal["softmax", "argmax"] = "softmax"
    """Choice among the sampled actions: by odds exp(Q), or the best [C]."""
    hidden: tuple[int, ...] = (256, 256, 256)
    """Widths of the actor's hidden layers, with Mish [C]."""
    embedding: int = 16
    """Entries that tell the actor its noise level [C]."""
    critics: int = 2
    """Members of the ensemble of critics."""
    critic: MlpSizes = MlpSizes(hidden=(256, 256, 256), activation="relu", layer_norm=False)
    """Sizes of a critic."""
    value_network: MlpSizes = MlpSizes(hidden=(256, 256, 256), activation="relu", layer_norm=False)
    """Sizes of V (iql)."""
    learning_rate: float = 3e-4
    """Learning rate of all networks (Adam) [C]."""
    tau: float = 0.005
    """Share of the newest weights that every update moves into the targets (Polyak)."""
    target_policy_every: int = 5
    """Updates between two moves of the target policy towards the policy [C]."""
    target_policy_after: int = 1000
    """Updates before which the target policy is the policy itself [C]."""


@config
class BehaviourConfig:
    """A generative model of the chunks in the data, trained by imitation alone."""

    kind: Literal["flow", "diffusion"] = "flow"
    """`flow`: velocity, Euler steps (Q-chunking [C]). `diffusion`: noise, variance-preserving
    schedule (EXPO [P])."""
    network: MlpSizes = MlpSizes(hidden=(512, 512, 512, 512), activation="relu", layer_norm=False)
    """Q-chunking [C], which has GELU."""
    steps: int = 10
    """Steps from noise to chunk: Euler steps [C], or levels K of the schedule (EXPO [P])."""
    beta_min: float = 0.1
    """Lowest rate of the schedule per unit of time; with .1 and 20 the last level keeps 4.3e-5 of
    the signal's variance, where betas 1e-4 to .02 at K = 10 would keep .904."""
    beta_max: float = 20.0
    """Highest rate of the schedule per unit of time."""
    eta: float = 1.0
    """Noise of the diffusion's sampler: 1 is DDPM, 0 DDIM, a function of where it started."""
    learning_rate: float = 3e-4
    """Learning rate of the behaviour model."""


@config
class ExpoConfig:
    """EXPO (arXiv 2507.07986): an imitated base policy, a learned edit of it, and the best of both
    by value."""

    kind: Literal["expo"] = "expo"
    sac: SacConfig = SacConfig(
        critic=MlpSizes(activation="relu"),
        actor=MlpSizes(activation="relu"),
        critics=10,
        subset=2,
        init_temperature=1.0,
    )
    """Critics, edit (its `actor`) and temperature: RLPD's [C], ten critics and the minimum of two
    [P]. Its `target_entropy` is that of the edit in units of actions; None takes A (log(2 beta) -
    1/2)."""
    base: BehaviourConfig = BehaviourConfig(
        kind="diffusion",
        network=MlpSizes(hidden=(256, 256, 256), activation="relu", layer_norm=False),
    )
    """Behaviour model whose actions are edited."""
    beta: float = 0.3
    """Bound on every entry of an edit [action units]; .05 to .7 by task [P]."""
    samples: int = 8
    """Base samples to choose from, and as many edited ones [P]."""
    edits: bool = True
    """Whether there are edits at all; without, the best base sample acts."""
    backup: Literal["max", "policy"] = "max"
    """Next action of the target: the best of all samples, as in acting [P], or one edited
    sample."""


@config
class QChunkingConfig:
    """Q-chunking (arXiv 2507.07969): values of whole chunks, and chunks like those of the data."""

    kind: Literal["q_chunking"] = "q_chunking"
    horizon: int = 5
    """h, actions per chunk, executed without looking [C]; 1 is the same method without chunks."""
    actor: Literal["best_of", "one_step"] = "best_of"
    """`best_of`: the best of `samples` chunks of the behaviour (QC); `one_step`: a network that
    gives the behaviour's chunk at once and climbs the value (QC-FQL)."""
    samples: int = 32
    """[C]"""
    distillation: float = 100.0
    """Weight of the one-step network's distance from the behaviour [C; by task 1e2 to 3e4]."""
    critic: MlpSizes = MlpSizes(hidden=(512, 512, 512, 512), activation="relu")
    """[C], which has GELU."""
    behaviour: BehaviourConfig = BehaviourConfig()
    """Behaviour model from which chunks are drawn."""
    critics: int = 2
    """Members of the ensemble of critics."""
    value: Literal["mean", "min"] = "mean"
    """Aggregate of the critics in the target and for `best_of` [C]."""
    learning_rate: float = 3e-4
    """Learning rate of the critics."""
    tau: float = 0.005
    """Share of the newest weights that every update moves into the targets (Polyak)."""
