"""Options of latent world models. Imports without torch."""

from __future__ import annotations

from dataclasses import field

from policies.rewards.config import ClassifierConfig, TrainSuccessConfig
from policies.training.config import TrainingConfig
from robots.config import config
from robots.spec import FieldSpec

LATENT = "latent"
"""What the success classifier of a world model sees."""


@config
class WorldModelSizes:
    """Of the networks; DiWA's for pictures are 1024 recurrent units and 32 x 32 classes."""

    recurrent: int = 256
    """Units that are handed from step to step."""
    hidden: tuple[int, ...] = (256,)
    """Widths of the hidden layers of every head."""
    latents: int = 8
    """Categorical variables per step."""
    classes: int = 8
    """Classes of each categorical variable."""
    uniform: float = 0.01
    """Share of the uniform distribution in every categorical one, so that no class is ever ruled
    out (DreamerV3)."""


@config
class WorldModelConfig:
    """A world model from play, and the classifier of success on its latents."""

    stream: str = "policy"
    """Stream of the episodes."""
    fields: tuple[str, ...] = ()
    """Vectors that are seen and predicted: all that a policy will see in dreams, and what a picture
    is drawn from."""
    action_field: str = "action"
    """Field that holds the action."""
    close_ups: tuple[tuple[str, float], ...] = ()
    """(field, scale): the networks are also shown tanh(field / scale), in its own unit: two
    centimetres are little of a vector that spans a table, but may be all that a contact is
    about."""
    sizes: WorldModelSizes = field(default_factory=WorldModelSizes)
    """Sizes of the networks."""
    sequence: int = 16
    """Recorded steps per row of a batch; DreamerV2 50, of pictures, which tell less of a moment
    than vectors do."""
    noise: float = 0.3
    """Deviation of what is seen from what is predicted [of the deviation of a step's change]: how
    exact it must be."""
    kl_balance: float = 0.8
    """Share of the divergence that moves the prediction towards what was seen, not the other way
    round (DreamerV2)."""
    kl_weight: float = 1.0
    """Weight of the divergence between posterior and prior."""
    alone: float = 0.5
    """Weight of imagining a sequence from its first step alone, against what was recorded. A model
    that is only ever shown true states lets a hand sink into a table: once a little inside, nothing
    that it has seen tells it to stop (Venkatraman et al., AAAI 2015). 0 goes without, as
    DreamerV2."""
    held_out: float = 0.05
    """Share of the episodes on which it is judged."""
    horizons: tuple[int, ...] = (1, 10, 50)
    """Steps after which imagined and recorded are compared."""
    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(
            steps=8000, learning_rate=1e-3, batch_size=64, max_grad_norm=10.0
        )
    )
    """A row of its batches is a sequence."""
    success: TrainSuccessConfig = field(
        default_factory=lambda: TrainSuccessConfig(
            classifier=ClassifierConfig(
                fields=(LATENT,),
                label_field="success",
                vector_width=256,
                hidden=(256,),
                differences_only=False,
            ),
            training=TrainingConfig(steps=1500, learning_rate=1e-3),
            precision=0.9,
        )
    )
    """Learned from the latents of recorded steps when the model is frozen."""


@config
class WorldModelCard:
    """What a saved world model says of itself."""

    version: int = 1
    """Version of the card's layout; a reader refuses any other."""
    task: str
    """Name of the task whose play was learned."""
    rate_hz: float
    """Steps per second."""
    observation: dict[str, FieldSpec]
    """Fields in the order of the vector."""
    action: FieldSpec
    """Shape, unit and frame of an action."""
    action_low: tuple[float, ...]
    """(A,) least and greatest that was recorded: beyond them nothing is known, and dreams do not go
    there."""
    action_high: tuple[float, ...]
    """Largest action per entry, (A,)."""
    close_ups: tuple[tuple[str, float], ...] = ()
    """Entries observed a second time at another scale, by field, with the scale."""
    sizes: WorldModelSizes
    """Sizes of the networks."""
    threshold: float
    """Probability from which a dream counts as solved."""
    training_data: str
    """Digest of what it was trained on."""
