"""Options of EXPO, Q-chunking and their behaviour models. Imports no torch.

Every default names its source: [C] is the released code of the method, [P] its paper.
"""

from __future__ import annotations

from typing import Literal

from policies.rl.networks.config import MlpSizes
from policies.rl.off_policy.config import SacConfig
from robots.config import Count, LearningRate, NonNegative, Positive, PositiveShare, config


@config
class BehaviourConfig:
    """Generative model of the action chunks in the data, trained by imitation only."""

    kind: Literal["flow", "diffusion"] = "flow"
    """Model family. `flow` predicts a velocity and takes Euler steps (Q-chunking [C]);
    `diffusion` predicts noise on a variance-preserving schedule (EXPO [P])."""
    network: MlpSizes = MlpSizes(hidden=(512, 512, 512, 512), activation="relu", layer_norm=False)
    """Layers of the network; sizes of Q-chunking [C], whose code uses GELU."""
    steps: Count = 10
    """Denoising steps: Euler steps of the flow [C], or noise levels K of the diffusion (EXPO
    [P])."""
    beta_min: Positive = 0.1
    """Lowest beta of the schedule per unit of time. With .1 and 20 the last level keeps 4.3e-5 of
    the variance of the signal; betas from 1e-4 to .02 would keep .904 at K = 10."""
    beta_max: Positive = 20.0
    """Highest beta of the schedule per unit of time."""
    eta: NonNegative = 1.0
    """Noise of the diffusion sampler: 1 is DDPM, 0 is deterministic DDIM."""
    learning_rate: LearningRate = 3e-4
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
    base: BehaviourConfig | None = BehaviourConfig(
        kind="diffusion",
        network=MlpSizes(hidden=(256, 256, 256), activation="relu", layer_norm=False),
    )
    """Base policy whose actions are edited. None has none of its own: its samples are given with
    every minibatch, and it is trained elsewhere."""
    beta: Positive = 0.3
    """Bound on every entry of an edit [action units]; .05 to .7 depending on the task [P]."""
    limit: Positive = 1.0
    """Bound on every entry of an edited action [action units]."""
    samples: Count = 8
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
    horizon: Count = 5
    """Actions per chunk h, executed open-loop [C]; 1 is the same method without chunks."""
    actor: Literal["best_of", "one_step"] = "best_of"
    """Policy. `best_of` selects the best of `samples` chunks of the behaviour model (QC);
    `one_step` is a one-step network, distilled from the behaviour model and trained to maximise Q
    (QC-FQL)."""
    samples: Count = 32
    """Chunks sampled per observation by `best_of` [C]."""
    distillation: NonNegative = 100.0
    """Weight of the distillation loss of the one-step network [C; 1e2 to 3e4 depending on the
    task]."""
    critic: MlpSizes = MlpSizes(hidden=(512, 512, 512, 512), activation="relu")
    """Layers of a critic; sizes of the released code [C], which uses GELU."""
    behaviour: BehaviourConfig | None = BehaviourConfig()
    """Behaviour model from which chunks are sampled. None has none of its own: its samples are
    given with every minibatch, and it is trained elsewhere; `best_of` only."""
    critics: Count = 2
    """Critics in the ensemble."""
    value: Literal["mean", "min"] = "mean"
    """Aggregation over the critics, in the Bellman target and for `best_of` [C]."""
    learning_rate: LearningRate = 3e-4
    """Learning rate of the critics."""
    tau: PositiveShare = 0.005
    """Polyak step size of the target networks per update."""
