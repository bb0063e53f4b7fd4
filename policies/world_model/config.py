"""Options of latent world models. Imports no torch."""

from __future__ import annotations

from dataclasses import field

from policies.rewards.config import ClassifierConfig, TrainSuccessConfig
from policies.training.config import TrainingConfig
from robots.config import Count, Finite, Hertz, NonNegative, Share, ShareBelowOne, Whole, config
from robots.spec import FieldSpec

LATENT = "latent"
"""Name of the success classifier's input, the latent of a world model."""


@config
class WorldModelSizes:
    """Sizes of the networks; DiWA uses 1024 recurrent units and 32 x 32 classes for images."""

    recurrent: Count = 256
    """Size of the recurrent state."""
    hidden: tuple[Count, ...] = (256,)
    """Widths of the hidden layers of every head."""
    latents: Count = 8
    """Number of categorical latent variables."""
    classes: Count = 8
    """Classes of each categorical variable."""
    uniform: Share = 0.01
    """Fraction of the uniform distribution mixed into every categorical distribution, so that no
    class has probability 0 (DreamerV3)."""


@config
class WorldModelConfig:
    """A world model trained on play, and a success classifier on its latents."""

    stream: str = "policy"
    """Stream of the episodes that holds observations and actions."""
    fields: tuple[str, ...] = ()
    """Vector fields that the model observes and predicts; they must include all fields that a
    policy needs in imagination and that rendering needs."""
    action_field: str = "action"
    """Field that holds the action."""
    scaled_features: tuple[tuple[str, Finite], ...] = ()
    """Additional inputs tanh(field / scale) as pairs (field, scale), with the scale in the field's
    unit. They resolve small distances: two centimetres are little in a vector that spans a table,
    but can decide about contact."""
    sizes: WorldModelSizes = field(default_factory=WorldModelSizes)
    """Sizes of the networks."""
    sequence: Count = 16
    """Length of a training sequence [steps]; DreamerV2 uses 50, for images, which contain less
    information per step than vectors."""
    noise: NonNegative = 0.3
    """Standard deviation of the observation model [standard deviations of a step's change]; smaller
    values demand more exact predictions."""
    kl_balance: Share = 0.8
    """Weight of the prior's part of the KL divergence in KL balancing, against the posterior's
    (DreamerV2)."""
    kl_weight: NonNegative = 1.0
    """Weight of the KL divergence between posterior and prior."""
    alone: NonNegative = 0.5
    """Weight of the open-loop loss: a sequence imagined from its first step is compared with the
    recorded one. A model trained on true states only lets a gripper sink into a table, because it
    was never trained on states slightly inside it (Venkatraman et al., AAAI 2015). 0 disables the
    loss, as in DreamerV2."""
    members: Count = 1
    """Number of world models, each with its own initial weights and minibatches of the same play.
    With several, an imagined episode is led by one of them, counts as solved only where the success
    classifiers of all agree, and their disagreement can be charged to the policy
    (`imagination.penalty` of the stage `finetune`). Training takes as many times as long."""
    held_out: ShareBelowOne = 0.05
    """Fraction of the episodes held out for evaluation."""
    horizons: tuple[Count, ...] = (1, 10, 50)
    """Horizons at which imagined and recorded observations are compared [steps]."""
    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(
            steps=8000, learning_rate=1e-3, batch_size=64, max_grad_norm=10.0
        )
    )
    """Training options; a row of a batch is a sequence."""
    success: TrainSuccessConfig = field(
        default_factory=lambda: TrainSuccessConfig(
            classifier=ClassifierConfig(
                fields=(LATENT,),
                label_field="success",
                vector_width=256,
                hidden=(256,),
                relative_only=False,
            ),
            training=TrainingConfig(steps=1500, learning_rate=1e-3),
            precision=0.9,
        )
    )
    """Success classifier, trained on the latents of recorded steps after the model is frozen."""


@config
class ImaginationConfig:
    """How a policy is rewarded in imagined rollouts; success earns 1."""

    penalty: NonNegative = 0.0
    """Reward lost per step for the disagreement of a world model's members, per multiple of what is
    usual on held-out play (its 95th percentile) above one; see `world_model.members`. Steps that
    play determines cost nothing. 0 charges nothing."""


@config
class WorldModelCard:
    """Metadata of a saved world model."""

    version: Whole = 1
    """Version of the card's layout; a reader refuses any other."""
    task: str
    """Name of the task of the play data."""
    rate_hz: Hertz
    """Steps per second."""
    observation: dict[str, FieldSpec]
    """Observation fields in the order of the vector."""
    action: FieldSpec
    """Shape, unit and frame of an action."""
    action_low: tuple[Finite, ...]
    """Smallest recorded action per entry, (A,); imagined actions are clipped to the recorded range,
    outside of which the model has no data."""
    action_high: tuple[Finite, ...]
    """Largest recorded action per entry, (A,)."""
    scaled_features: tuple[tuple[str, Finite], ...] = ()
    """Scaled features, see `WorldModelConfig.scaled_features`."""
    sizes: WorldModelSizes
    """Sizes of the networks."""
    threshold: Share
    """Success probability at which an imagined episode counts as solved."""
    members: Count = 1
    """Number of world models; the first has its files in the folder itself, the others in
    `member_1`, `member_2` and so on."""
    usual_disagreement: NonNegative = 0.0
    """95th percentile of the members' disagreement on held-out play, see
    `policies.world_model.ensemble`; 0 for a single model."""
    training_data: str
    """Digest of the training data."""
