"""Network of the success classifier. `policies.rewards.train_success_classifier` trains it,
`policies.rewards.success_files` saves it, and `policies.rewards.success_ensemble` joins several.

Shape suffixes: B batch, C channels, H height, W width, E spatial embeddings, S entries of all
vectors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from policies.networks.config import TrunkConfig
from policies.networks.field_modules import FieldModules
from policies.networks.images.efficientnet_lite import EfficientNetLite0, pretrained_trunk
from policies.normalize import StandardNormalizer
from policies.rewards.config import ClassifierConfig
from robots.errors import HandoffError
from robots.spec import FieldSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

_GROUP = 8
"""Maximum number of channels per group of a GroupNorm."""


class ClassifierImageEncoder(nn.Module):
    """Strided convolutions followed by learned spatial weightings, as in HIL-SERL's encoders."""

    place_ECHW: Tensor

    def __init__(self, height: int, width: int, channels: tuple[int, ...], embeddings: int) -> None:
        """Builds the encoder for images of one size.

        Raises:
            HandoffError: the image is too small for the number of convolutions.
        """
        super().__init__()
        if min(height, width) < 2 ** len(channels):
            raise HandoffError(
                f"success classifier: an image of {height} x {width} cannot be halved {len(channels)} times, expected "
                f"at least {2 ** len(channels)} pixels either way."
            )
        layers: list[nn.Module] = []
        for inputs, outputs in zip((3, *channels[:-1]), channels, strict=True):
            groups = max(1, outputs // _GROUP)
            layers += [
                nn.Conv2d(inputs, outputs, 3, stride=2, padding=1),
                nn.GroupNorm(groups, outputs),
                nn.ReLU(),
            ]
            height, width = (height + 1) // 2, (width + 1) // 2
        self.convolutions = nn.Sequential(*layers)
        scale = (height * width) ** -0.5
        self.place_ECHW = nn.Parameter(scale * torch.randn(embeddings, channels[-1], height, width))

    def forward(self, image_BCHW: Tensor) -> Tensor:
        """Images in [0, 1] to features `(B, E * C)`."""
        return torch.einsum(
            "bchw,echw->bec", self.convolutions(image_BCHW), self.place_ECHW
        ).flatten(1)


class TrunkImageEncoder(nn.Module):
    """A frozen trunk followed by learned spatial weightings of its feature maps.

    Args:
        config: the trunk; its weights are those of `load_pretrained` or of a saved classifier.
        height: height of an image [px].
        width: width of an image [px].
        embeddings: spatial weightings E per channel.
    """

    place_ECHW: Tensor

    def __init__(self, config: TrunkConfig, height: int, width: int, embeddings: int) -> None:
        super().__init__()
        self.config = config
        self.trunk = EfficientNetLite0(config.stride).requires_grad_(False).eval()
        rows, columns = (-(-size // config.stride) for size in (height, width))
        channels = self.trunk.channels
        scale = (rows * columns) ** -0.5
        self.place_ECHW = nn.Parameter(scale * torch.randn(embeddings, channels, rows, columns))

    def load_pretrained(self) -> None:
        """Sets the weights of the trunk to those of ImageNet."""
        self.trunk.load_state_dict(pretrained_trunk(self.config.stride).state_dict())

    def train(self, mode: bool = True) -> TrunkImageEncoder:
        """Sets the mode as `nn.Module.train`, but for the trunk, which stays in evaluation mode."""
        super().train(mode)
        self.trunk.eval()
        return self

    def forward(self, image_BCHW: Tensor) -> Tensor:
        """Images in [0, 1] to features `(B, E * C)`."""
        return self.weigh(self.trunk(image_BCHW))

    def weigh(self, map_BCHW: Tensor) -> Tensor:
        """Feature maps of the trunk to features `(B, E * C)`."""
        return torch.einsum("bchw,echw->bec", map_BCHW, self.place_ECHW).flatten(1)

    @torch.no_grad()
    def maps(self, images: np.ndarray, batch: int = 64) -> np.ndarray:
        """Feature maps `(M, C, h, w)` float16 of uint8 images `(M, H, W, 3)`."""
        parts = []
        for first in range(0, len(images), batch):
            image_BHWC = torch.from_numpy(np.ascontiguousarray(images[first : first + batch]))
            map_BCHW = self.trunk(image_BHWC.permute(0, 3, 1, 2).float() / 255.0)
            parts.append(map_BCHW.half().numpy())
        return np.concatenate(parts)


class SuccessClassifier(nn.Module):
    """Maps observations, as fields `(B, ...)` by name, to logits `(B,)`."""

    def __init__(
        self,
        observation: Mapping[str, FieldSpec],
        config: ClassifierConfig,
        encoders: Mapping[str, nn.Module] | None = None,
    ) -> None:
        """Builds the classifier with new weights, except for `encoders`: per image a module from
        `(B, 3, H, W)` in [0, 1] to `(B, F)`.

        Raises:
            HandoffError: an encoder without image, an image that is not (height, width, 3), or
                relative or scaled features of unknown vectors.
        """
        super().__init__()
        # Check the inputs.
        encoders = encoders or {}
        self.images = [name for name, spec in observation.items() if spec.unit == "u8"]
        self.vectors = [name for name in observation if name not in self.images]
        self.observation = dict(observation)
        unknown = sorted(set(encoders) - set(self.images))
        if unknown or not observation:
            raise HandoffError(
                f"success classifier: encoders for {unknown}, its images are {self.images}."
            )
        # One encoder per image.
        self.encoders = FieldModules()
        self.reductions = FieldModules()
        for name in self.images:
            height, width = _size(name, observation[name])
            encoder = encoders.get(name)
            if encoder is None and config.trunk is not None:
                encoder = TrunkImageEncoder(config.trunk, height, width, config.embeddings)
            elif encoder is None:
                encoder = ClassifierImageEncoder(height, width, config.channels, config.embeddings)
            self.encoders[name] = encoder
            self.reductions[name] = _reduction(_width(encoder, height, width), config.picture_width)
        # Vector inputs with relative and scaled features.
        width = len(self.images) * config.picture_width
        self.relative_features = _checked_relative_features(
            config.relative_features, {n: observation[n] for n in self.vectors}
        )
        self.scaled_features = _checked_scaled_features(config.scaled_features, self.vectors)
        if self.vectors:
            hidden = {
                name for pair in config.relative_features for name in pair if config.relative_only
            }
            self.direct_vectors = [name for name in self.vectors if name not in hidden]
            size = sum(prod(observation[name].shape) for name in self.direct_vectors)
            size += sum(count for _, _, count in self.relative_features)
            size += sum(prod(observation[name].shape) for name, _ in self.scaled_features)
            self.normalize = StandardNormalizer((size,))
            self.reduce_vectors = _reduction(size, config.vector_width)
            width += config.vector_width
        # Head.
        layers: list[nn.Module] = []
        for hidden in config.hidden:
            layers += [
                nn.Linear(width, hidden),
                nn.Dropout(config.dropout),
                nn.LayerNorm(hidden),
                nn.ReLU() if config.activation == "relu" else nn.LeakyReLU(),
            ]
            width = hidden
        self.head = nn.Sequential(*layers, nn.Linear(width, 1))

    def fit(self, fields: Mapping[str, np.ndarray]) -> None:
        """Fits the normaliser of the vectors to `fields`, `(M, ...)` each."""
        if self.vectors:
            flat = {name: fields[name].reshape(len(fields[name]), -1) for name in self.vectors}
            relative = [
                flat[first][:, :n] - flat[second][:, :n]
                for first, second, n in self.relative_features
            ]
            scaled = [np.tanh(flat[name] / scale) for name, scale in self.scaled_features]
            self.normalize.fit(
                np.concatenate(
                    [*(flat[name] for name in self.direct_vectors), *relative, *scaled], axis=1
                )
            )

    def train(self, mode: bool = True) -> SuccessClassifier:
        """Sets the mode as `nn.Module.train`; frozen encoders stay in evaluation mode, so that
        their batch statistics do not drift."""
        super().train(mode)
        for encoder in self.encoders.values():
            if not any(parameter.requires_grad for parameter in encoder.parameters()):
                encoder.eval()
        return self

    def forward(self, fields: dict[str, Tensor]) -> Tensor:
        """Logits `(B,)`; images are uint8 `(B, H, W, 3)`, vectors float32. In place of an image
        that a frozen trunk encodes, its feature map `(B, C, h, w)` may be given, float32."""
        parts = []
        for name in self.images:
            encoder = self.encoders[name]
            if isinstance(encoder, TrunkImageEncoder) and fields[name].dtype != torch.uint8:
                parts.append(self.reductions[name](encoder.weigh(fields[name])))
                continue
            image_BCHW = fields[name].permute(0, 3, 1, 2).float() / 255.0
            parts.append(self.reductions[name](encoder(image_BCHW)))
        if self.vectors:
            flat = {name: fields[name].flatten(1) for name in self.vectors}
            relative = [
                flat[first][:, :n] - flat[second][:, :n]
                for first, second, n in self.relative_features
            ]
            scaled = [torch.tanh(flat[name] / scale) for name, scale in self.scaled_features]
            inputs = torch.cat(
                [*(flat[name] for name in self.direct_vectors), *relative, *scaled], dim=1
            )
            parts.append(self.reduce_vectors(self.normalize(inputs)))
        return self.head(torch.cat(parts, dim=1))[:, 0]


def probabilities(
    classifier: nn.Module, fields: Mapping[str, np.ndarray], batch: int = 512
) -> np.ndarray:
    """Success probabilities `(M,)` float32 of M observations by a classifier or an ensemble, which
    is left in evaluation mode."""
    classifier.eval()
    device = next(classifier.parameters()).device
    size = len(next(iter(fields.values())))
    parts = [np.zeros(0, dtype=np.float32)]
    with torch.no_grad():
        for first in range(0, size, batch):
            rows = {name: values[first : first + batch] for name, values in fields.items()}
            parts.append(torch.sigmoid(classifier(to_tensors(rows, device))).float().cpu().numpy())
    return np.concatenate(parts)


def to_tensors(fields: Mapping[str, np.ndarray], device: torch.device) -> dict[str, Tensor]:
    """Converts arrays to tensors; uint8 images are kept, everything else becomes float32."""
    tensors = {
        name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in fields.items()
    }
    return {
        name: (t if t.dtype == torch.uint8 else t.float()).to(device) for name, t in tensors.items()
    }


def shifted_images(images: np.ndarray, limit: int, generator: np.random.Generator) -> np.ndarray:
    """Images `(B, H, W, 3)`, each randomly shifted by up to `limit` pixels along both axes, with
    the edge repeated (DrQ, arXiv 2004.13649)."""
    b, height, width, _ = images.shape
    down, right = generator.integers(-limit, limit + 1, size=(2, b, 1))
    row_BH = np.clip(np.arange(height) + down, 0, height - 1)
    column_BW = np.clip(np.arange(width) + right, 0, width - 1)
    return images[np.arange(b)[:, None, None], row_BH[:, :, None], column_BW[:, None, :]]


def digest_weights(module: nn.Module) -> str:
    """Digest (hex sha256) of all weights and buffers."""
    digest = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


@contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seeds torch's global random state within the context and restores it afterwards."""
    devices = [device] if device is not None and device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


def _checked_relative_features(
    relative_features: tuple[tuple[str, str], ...], vectors: Mapping[str, FieldSpec]
) -> list[tuple[str, str, int]]:
    """Checks the relative features; (first, second, common length) of each."""
    features = []
    for first, second in relative_features:
        if first not in vectors or second not in vectors:
            raise HandoffError(
                f"success classifier: relative feature of '{first}' and '{second}', its vectors are {sorted(vectors)}."
            )
        features.append(
            (first, second, min(prod(vectors[first].shape), prod(vectors[second].shape)))
        )
    return features


def _checked_scaled_features(
    scaled_features: tuple[tuple[str, float], ...], vectors: list[str]
) -> tuple[tuple[str, float], ...]:
    for name, scale in scaled_features:
        if name not in vectors or not scale > 0.0:
            raise HandoffError(
                f"success classifier: scaled feature '{name}' with scale {scale}, its vectors are {sorted(vectors)} "
                "and scales must be above 0."
            )
    return scaled_features


def _reduction(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, outputs), nn.LayerNorm(outputs), nn.Tanh())


def _size(name: str, spec: FieldSpec) -> tuple[int, int]:
    if len(spec.shape) != 3 or spec.shape[2] != 3:
        raise HandoffError(
            f"success classifier: image '{name}' has shape {spec.shape}, expected (height, width, 3)."
        )
    return spec.shape[0], spec.shape[1]


def _width(encoder: nn.Module, height: int, width: int) -> int:
    """Size of the encoder's output for an image."""
    mode = encoder.training
    with torch.no_grad():
        out = encoder.eval()(torch.zeros(1, 3, height, width))
    encoder.train(mode)
    if out.ndim != 2:
        raise HandoffError(
            f"success classifier: an encoder returns shape {tuple(out.shape)}, expected (B, F)."
        )
    return out.shape[1]
