"""Options of success classifiers and of the rewards of recorded episodes."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from pydantic import Discriminator, Field

from policies.networks.config import TrunkConfig
from policies.training.config import TrainingConfig
from robots.config import Count, Finite, Hertz, NonNegative, Share, ShareBelowOne, Whole, config
from robots.spec import FieldSpec
from robots.success import DetectorConfig


@config
class ClassifierConfig:
    """Inputs, label and sizes of a success classifier."""

    stream: str = "policy"
    """Stream of the episodes."""
    fields: tuple[str, ...] = ("image_front", "image_wrist")
    """Input fields: images (unit u8) and vectors."""
    relative_features: tuple[tuple[str, str], ...] = ()
    """Pairs of vectors among `fields` whose difference, first minus second over their common
    length, is an additional input, so that relative positions need not be learned from few
    successes."""
    relative_only: bool = False
    """Whether to drop the vectors of `relative_features` as direct inputs; with successes at few
    positions the network would otherwise learn these positions."""
    scaled_features: tuple[tuple[str, Finite], ...] = ()
    """Additional inputs tanh(vector / scale) as pairs (vector among `fields`, scale). They resolve
    small distances: two centimetres are little in a vector that spans a table, but can decide about
    success."""
    label_field: str = "reward"
    """Field with the label, above 1/2 where the task is solved, such as a sparse reward or a
    person's key."""
    label_lead: Whole = 1
    """Steps between label and labelled observation: the reward of step t follows its action, so it
    labels observation t + 1."""
    trunk: TrunkConfig | None = None
    """Frozen trunk that encodes the images, in training once each and without random shifts; None
    trains convolutions."""
    channels: tuple[Count, ...] = (32, 64, 64, 128)
    """Channels of the image encoder's convolutions, each of which halves height and width."""
    embeddings: Count = 8
    """Number of learned spatial weightings of the last feature map."""
    picture_width: Count = 256
    """Size of the feature vector of an image."""
    vector_width: Count = 64
    """Size of the feature vector of all vector inputs together."""
    hidden: tuple[Count, ...] = (256,)
    """Hidden units of the layers before the logit."""
    dropout: ShareBelowOne = 0.1
    """Dropout rate of the hidden layers."""
    activation: Literal["relu", "leaky_relu"] = "relu"
    """Activation of the hidden layers; the VICE classifiers of SERL have `leaky_relu`."""
    shift: Whole = 4
    """Maximum random shift of images in training [px]; the edge is repeated. Images that a frozen
    trunk encodes are not shifted."""


@config
class TrainSuccessConfig:
    """Training of a success classifier and choice of its threshold."""

    classifier: ClassifierConfig = field(default_factory=ClassifierConfig)
    """Observation, label and sizes of the classifier."""
    members: Count = 1
    """Number of classifiers, each with weights and minibatches of its own, whose least probability
    is the score: a step counts as success only where all agree. 1 is a single classifier."""
    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(steps=1000, learning_rate=1e-3)
    )
    """Updates, learning rate, batch size and logging."""
    detector: DetectorConfig = field(default_factory=DetectorConfig)
    """Detector options; the threshold is replaced by the chosen one, and the release lowered to it
    if it is higher."""
    precision: Share = 0.95
    """Required fraction of true successes among the accepted steps."""
    lowest_threshold: Share = 0.5
    """Lower bound of the chosen threshold."""
    label_smoothing: ShareBelowOne = 0.0
    """Share by which labels are drawn to 1/2: a success has the label 1 less half of it."""
    mixup: NonNegative = 0.0
    """Parameter of the beta distribution from which the share of a second state and its label in
    each training state is drawn (arXiv 1710.09412); 0 mixes none, 1 draws it uniformly."""
    success_share: Share | None = None
    """Expected fraction of successes among the steps that the detector will evaluate. None uses the
    fraction in the policy's held-out steps, from which alone the threshold is chosen. With a value,
    which a policy that never succeeds requires, held-out successes of demonstrations are used
    too."""
    choice_fraction: Share = 0.2
    """Fraction of the episodes held out for choosing the threshold."""
    judge_fraction: Share = 0.2
    """Fraction of the episodes held out for evaluating the threshold."""


@config
class RefreshConfig:
    """Further training of a session's success classifier on the states that the policy visits
    (VICE, arXiv 1805.11686)."""

    every: Count = 20
    """Episodes between two versions of the classifier."""
    judged: Literal["negative", "left_out"] = "negative"
    """Use of the states at which the classifier ended an episode as solved and nobody labelled it:
    as negatives like the policy's other states, as in VICE, or not at all."""
    precision: Share = 0.98
    """Required fraction of true successes among the accepted held-out steps; a version that does
    not reach it is not used."""
    lowest_threshold: Share = 0.7
    """Lower bound of the chosen threshold. Successes among the negatives lower the scores of all
    successes, so it is below that of a first training."""
    label_smoothing: ShareBelowOne = 0.1
    """Share by which labels are drawn to 1/2, since some negatives are successes."""
    mixup: NonNegative = 0.0
    """Parameter of mixup as in `TrainSuccessConfig`; 1 in SERL's VICE [C]."""
    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(
            steps=300, learning_rate=3e-4, warmup_steps=20, preflight_seconds=0.0
        )
    )
    """Updates of each version, from the weights of the version before it."""


@config
class SuccessCard:
    """Metadata of a saved success classifier."""

    version: Whole = 1
    """Version of the card's layout; a reader refuses any other."""
    task: str
    """Name of the task whose success is classified."""
    rate_hz: Hertz
    """Steps per second."""
    observation: dict[str, FieldSpec]
    """Input fields of the classifier."""
    model: ClassifierConfig
    """Configuration with which the classifier was trained."""
    foreign_encoders: tuple[str, ...] = ()
    """Images with an external encoder, which must be passed again to load the classifier."""
    members: Count = 1
    """Number of classifiers whose least probability is the score."""
    detector: DetectorConfig
    """Threshold and persistence with which probabilities become a success."""
    report: dict[str, Finite]
    """Detection rates on held-out episodes of a policy, see `metrics`."""
    training_data: str
    """Digest of the labelled steps."""


@config
class RecordedRewardConfig:
    """Reward that the store recorded at every step."""

    kind: Literal["store"] = "store"
    reward_field: str = "reward"
    """Field of the stream with the reward that followed each action."""


@config
class SuccessRewardConfig:
    """Sparse reward: 1 where the recorded episode is first solved, 0 elsewhere."""

    kind: Literal["success"] = "success"


@config
class ClassifierRewardConfig:
    """Sparse reward: 1 where the detector of a success classifier first reports success."""

    kind: Literal["classifier"] = "classifier"


@config
class ImageTextRewardConfig:
    """Similarity of a camera image to a sentence, by an image-text model (VLM-RM, arXiv
    2310.12921)."""

    kind: Literal["image_text"] = "image_text"
    folder: str
    """Folder of a CLIP model as transformers' `save_pretrained` writes it, with its processor."""
    image_field: str = "image_front"
    """Camera field of the stream."""
    goal: str
    """Sentence that describes the solved task."""
    baseline: str
    """Sentence that describes the initial scene."""
    alpha: Annotated[float, Field(ge=0.0, le=1.0)] = 0.5
    """Share of the projection onto the line from baseline to goal; 0 is the cosine similarity."""
    success_above: Finite | None = None
    """Reward from which a step counts as solved; None keeps the recorded success."""


RewardSource = Annotated[
    RecordedRewardConfig | SuccessRewardConfig | ClassifierRewardConfig | ImageTextRewardConfig,
    Discriminator("kind"),
]
"""Sources of the reward of recorded episodes, discriminated by `kind`."""
