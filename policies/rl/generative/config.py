"""Options of EDP, EXPO, Q-chunking and their behaviour models. Imports no torch.

Every default names its source: [C] is the released code of the method, [P] its paper.
"""

from __future__ import annotations

from typing import Literal

from policies.rl.networks.config import MlpSizes
from policies.rl.off_policy.config import SacConfig
from robots.config import config


@config
class EdpConfig:
    """Diffusion policy that maximises Q through a one-step prediction of the clean action (EDP,
    arXiv 2305.20081)."""

    kind: Literal["edp"] = "edp"
    objective: Literal["td3", "crr", "iql"] = "td3"
    """Policy objective: the gradient of Q (td3), or Q as a weight on the actions in the data (crr,
    iql) [P]."""
    q_weight: float = 2.0
    """Weight lambda of the Q term of td3, which is divided by the mean of |Q|; 0 is behaviour
    cloning [C]."""
    expectile: float = 0.7
    """Expectile of V (iql) [C]."""
    inverse_temperature: float = 3.0
    """Inverse temperature b of the weight exp(b (Q - V)) (crr, iql) [C]."""
    weight_clip: float = 100.0
    """Upper bound of the advantage weight."""
    crr_samples: int = 4
    """Policy samples whose mean Q estimates V (crr); our choice."""
    schedule: Literal["vp", "linear", "cosine"] = "vp"
    """Noise schedule: `vp` is that of Diffusion-QL and EDP [C], `linear` DDPM's betas, `cosine`
    that of `policies.samplers.ddim`."""
    levels: int = 100
    """Noise levels K [C]; the paper also uses 1000 with few sampler `steps`."""
    steps: int | None = None
    """Sampler steps. None runs DDPM over all K levels [C]; a number runs DDIM, the first-order
    DPM-solver, with that many steps."""
    candidates: int = 50
    """Actions sampled per observation when acting, one of which is selected by Q [C]; 1 disables
    the selection."""
    choose: Literal["softmax", "argmax"] = "softmax"
    """Selection among the sampled actions: with probabilities proportional to exp(Q), or the
    greatest Q [C]."""
    hidden: tuple[int, ...] = (256, 256, 256)
    """Hidden layer sizes of the actor, which uses Mish [C]."""
    embedding: int = 16
    """Size of the embedding of the noise level [C]."""
    critics: int = 2
    """Critics in the ensemble."""
    critic: MlpSizes = MlpSizes(hidden=(256, 256, 256), activation="relu", layer_norm=False)
    """Layers of a critic."""
    value_network: MlpSizes = MlpSizes(hidden=(256, 256, 256), activation="relu", layer_norm=False)
    """Layers of V (iql)."""
    learning_rate: float = 3e-4
    """Learning rate of all networks (Adam) [C]."""
    tau: float = 0.005
    """Polyak step size of the target networks per update."""
    target_policy_every: int = 5
    """Updates between two Polyak steps of the target policy [C]."""
    target_policy_after: int = 1000
    """Updates during which the target policy is a copy of the policy [C]."""


@config
class BehaviourConfig:
    """Generative model of the action chunks in the data, trained by imitation only."""

    kind: Literal["flow", "diffusion"] = "flow"
    """Model family. `flow` predicts a velocity and takes Euler steps (Q-chunking [C]);
    `diffusion` predicts noise on a variance-preserving schedule (EXPO [P])."""
    network: MlpSizes = MlpSizes(hidden=(512, 512, 512, 512), activation="relu", layer_norm=False)
    """Layers of the network; sizes of Q-chunking [C], whose code uses GELU."""
    steps: int = 10
    """Denoising steps: Euler steps of the flow [C], or noise levels K of the diffusion (EXPO
    [P])."""
    beta_min: float = 0.1
    """Lowest beta of the schedule per unit of time. With .1 and 20 the last level keeps 4.3e-5 of
    the variance of the signal; betas from 1e-4 to .02 would keep .904 at K = 10."""
    beta_max: float = 20.0
    """Highest beta of the schedule per unit of time."""
    eta: float = 1.0
    """Noise of the diffusion sampler: 1 is DDPM, 0 is deterministic DDIM."""
    learning_rate: float = 3e-4
    """Learning rate of the behaviour model."""


@config
class ExpoConfig:
    """EXPO (arXiv 2507.07986): an imitation-trained base policy, a learned edit of its actions, and
    a selection among both by value."""

    kind: Literal["expo"] = "expo"
    sac: SacConfig = SacConfig(
        critic=MlpSizes(activation="relu"),
        actor=MlpSizes(activation="relu"),
        critics=10,
        subset=2,
        init_temperature=1.0,
    )
    """Options of critics, edit policy (its `actor`) and temperature: those of RLPD [C], with ten
    critics and the minimum over two [P]. `target_entropy` applies to the edit in action units; None
    takes A (log(2 beta) - 1/2)."""
    base: BehaviourConfig = BehaviourConfig(
        kind="diffusion",
        network=MlpSizes(hidden=(256, 256, 256), activation="relu", layer_norm=False),
    )
    """Base policy whose actions are edited."""
    beta: float = 0.3
    """Bound on every entry of an edit [action units]; .05 to .7 depending on the task [P]."""
    samples: int = 8
    """Base samples per observation, each also edited, among which the best is selected [P]."""
    edits: bool = True
    """Whether edits are used; without them the best base sample acts."""
    backup: Literal["max", "policy"] = "max"
    """Next action of the Bellman target: `max` takes the best of all samples, as in acting [P];
    `policy` takes one edited sample."""


@config
class QChunkingConfig:
    """Q-chunking (arXiv 2507.07969): Q-functions over action chunks, with a policy close to the
    data."""

    kind: Literal["q_chunking"] = "q_chunking"
    horizon: int = 5
    """Actions per chunk h, executed open-loop [C]; 1 is the same method without chunks."""
    actor: Literal["best_of", "one_step"] = "best_of"
    """Policy. `best_of` selects the best of `samples` chunks of the behaviour model (QC);
    `one_step` is a one-step network, distilled from the behaviour model and trained to maximise Q
    (QC-FQL)."""
    samples: int = 32
    """Chunks sampled per observation by `best_of` [C]."""
    distillation: float = 100.0
    """Weight of the distillation loss of the one-step network [C; 1e2 to 3e4 depending on the
    task]."""
    critic: MlpSizes = MlpSizes(hidden=(512, 512, 512, 512), activation="relu")
    """Layers of a critic; sizes of the released code [C], which uses GELU."""
    behaviour: BehaviourConfig = BehaviourConfig()
    """Behaviour model from which chunks are sampled."""
    critics: int = 2
    """Critics in the ensemble."""
    value: Literal["mean", "min"] = "mean"
    """Aggregation over the critics, in the Bellman target and for `best_of` [C]."""
    learning_rate: float = 3e-4
    """Learning rate of the critics."""
    tau: float = 0.005
    """Polyak step size of the target networks per update."""
