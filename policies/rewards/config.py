"""Options of this package."""

from __future__ import annotations

from dataclasses import field

from policies.training.config import TrainingConfig
from robots.config import config
from robots.spec import FieldSpec
from robots.success import DetectorConfig


@config
class ClassifierConfig:
    """What the classifier sees and how large it is."""

    stream: str = "policy"
    """Stream of the episodes."""
    fields: tuple[str, ...] = ("image_front", "image_wrist")
    """Pictures (unit u8) and vectors."""
    differences: tuple[tuple[str, str], ...] = ()
    """Pairs of vectors among `fields`: the first less the second, as far as both go, is shown
    beside them. What is near what must then not have to be learned from few successes."""
    differences_only: bool = False
    """Whether vectors that a difference is taken of are shown through it alone: from successes at
    twenty places the network learns the places."""
    close_ups: tuple[tuple[str, float], ...] = ()
    """(vector, scale): a vector among `fields` is also shown through tanh(vector / scale): two
    centimetres are little of a vector that spans a table, but may be all that success is about."""
    label_field: str = "reward"
    """Field that is above 1/2 where the task is solved, such as a sparse reward or a person's
    key."""
    label_lead: int = 1
    """Steps that the label is ahead: the reward of step t follows its action, so it tells of
    observation t + 1."""
    channels: tuple[int, ...] = (32, 64, 64, 128)
    """Channels of the image encoder's convolutions, each of which halves height and width."""
    embeddings: int = 8
    """Learned spatial weightings of the last of them."""
    picture_width: int = 256
    """Entries that a picture is reduced to."""
    vector_width: int = 64
    """Entries that all vectors together are mapped to."""
    hidden: tuple[int, ...] = (256,)
    """Units of the layers before the logit."""
    dropout: float = 0.1
    """Share of hidden units left out while learning."""
    shift: int = 4
    """Pictures are shifted by up to so many pixels while learning, with the edge repeated."""


@config
class TrainSuccessConfig:
    """A success classifier with its threshold."""

    classifier: ClassifierConfig = field(default_factory=ClassifierConfig)
    """Observation, label and sizes of the classifier."""
    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(steps=1000, learning_rate=1e-3)
    )
    """Updates, learning rate, batch size and logging."""
    detector: DetectorConfig = field(default_factory=DetectorConfig)
    """Its threshold is replaced by the chosen one, and its release lowered to it where need be."""
    precision: float = 0.95
    """Wanted share of true successes among the accepted steps."""
    lowest_threshold: float = 0.5
    """The chosen threshold is never below."""
    success_share: float | None = None
    """Share of successes among the steps that the detector will see. None: as the policy's held-out
    steps have it, and those alone choose the threshold. Given, as it must be for a policy that
    never succeeds, demonstrations lend their held-out successes."""
    choice_fraction: float = 0.2
    """Share of the episodes on which the threshold is chosen."""
    judge_fraction: float = 0.2
    """Share of the episodes on which it is judged."""


@config
class SuccessCard:
    """What a saved classifier says of itself."""

    version: int = 1
    """Version of the card's layout; a reader refuses any other."""
    task: str
    """Name of the task whose success is classified."""
    rate_hz: float
    """Steps per second."""
    observation: dict[str, FieldSpec]
    """Fields that the classifier observes, by name."""
    model: ClassifierConfig
    """Configuration with which the classifier was trained."""
    foreign_encoders: tuple[str, ...] = ()
    """Pictures whose encoder was handed in, and must be again to load it."""
    detector: DetectorConfig
    """Threshold and persistence with which probabilities become a success."""
    report: dict[str, float]
    """What the detector is worth on held-out episodes of a policy, see `metrics`."""
    training_data: str
    """Digest of the labelled steps."""
