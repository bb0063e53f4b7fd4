"""A vision model of transformers or timm from a local folder, as a frozen trunk of image encoders.

The tokens of a vision transformer are laid out as a map, without class and register tokens; the
maps of convolutional networks are taken as they are. Pictures are resized to the model's input by
bilinear interpolation with anti-aliasing, whatever interpolation and crop its own processor has, so
that the whole picture is seen. The channels of every place are scaled to mean 0 and variance 1, as
the scales of models differ.

Only safetensors are read, strictly, and no code from the folder runs.

Shape suffixes: N images, H height, W width, L tokens, C channels.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, layer_norm

from policies.language.pretrained_folder import load_pretrained
from policies.networks.images.image_model import WEIGHTS, ImageModel
from robots.errors import HandoffError
from robots.extras import pip_install

_HEADS = ("pooler", "head")
"""Names of transformers' modules behind the tokens, which the maps do not need."""


class FolderTrunk(nn.Module):
    """Maps images (N, 3, H, W) to feature maps (N, C, rows, columns), whose size is the model's.

    Args:
        source: description of the model; its weights are random until `load_pretrained`.

    Raises:
        HandoffError: a model that is unknown, or has no feature maps.
    """

    mean_C11: Tensor
    std_C11: Tensor

    def __init__(self, source: ImageModel) -> None:
        super().__init__()
        self.source = source
        for name, values in (("mean_C11", source.mean), ("std_C11", source.std)):
            self.register_buffer(name, torch.tensor(values)[:, None, None], persistent=False)
        # The random state of a training stays as it is.
        with torch.random.fork_rng(devices=[]):
            self.model = _new_model(source)
        self.requires_grad_(False).eval()
        self._shape = self._probed()

    @property
    def channels(self) -> int:
        """C."""
        return self._shape[0]

    def map_shape(self, size: tuple[int, int]) -> tuple[int, int, int]:
        """Channels, rows and columns of the maps, which are the same for images of any `size`."""
        return self._shape

    def forward(self, image_NCHW: Tensor) -> Tensor:
        """Feature maps of RGB images in [0, 1]."""
        if tuple(image_NCHW.shape[-2:]) != self.source.size:
            image_NCHW = interpolate(image_NCHW, self.source.size, mode="bilinear", antialias=True)
        map_NHWC = self.model((image_NCHW - self.mean_C11) / self.std_C11)
        return layer_norm(map_NHWC, map_NHWC.shape[-1:]).permute(0, 3, 1, 2)

    def train(self, mode: bool = True) -> Self:
        """Stays in evaluation mode, so that batch normalisation keeps its statistics."""
        return super().train(False)

    def load_pretrained(self) -> None:
        """Sets the weights to those in the folder of the model.

        Raises:
            HandoffError: the file cannot be read, or a weight is missing or has another shape.
        """
        with torch.random.fork_rng(devices=[]):
            self.model.load(self.source.folder)

    def identity(self) -> str:
        """Digest of the model's description and weights."""
        digest = hashlib.sha256()
        for data in self.source.files.values():
            digest.update(data)
        for name, tensor in self.state_dict().items():
            digest.update(name.encode())
            digest.update(tensor.cpu().contiguous().numpy().data)
        return digest.hexdigest()

    @torch.no_grad()
    def _probed(self) -> tuple[int, int, int]:
        """Channels, rows and columns of the map of one image.

        Raises:
            HandoffError: the model does not take images of its size.
        """
        try:
            map_NCHW = self(torch.zeros(1, 3, *self.source.size))
        except (RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:300]
            raise HandoffError(
                f"{self.source.folder}: the model takes no images of {self.source.size[0]} x {self.source.size[1]} px "
                f"({reason}). Does its preprocessor_config.json belong to it?"
            ) from None
        return map_NCHW.shape[1], map_NCHW.shape[2], map_NCHW.shape[3]


def _new_model(source: ImageModel) -> _TransformersModel | _TimmModel:
    return _TransformersModel(source) if source.library == "transformers" else _TimmModel(source)


class _TransformersModel(nn.Module):
    """Scaled images (N, 3, H, W) to maps (N, rows, columns, C) by a model of transformers, of a
    model of pictures and words its vision tower."""

    def __init__(self, source: ImageModel) -> None:
        super().__init__()
        self.folder = source.folder
        self.config = _transformers_config(source)
        from transformers import AutoModel

        try:
            model = AutoModel.from_config(self.config, dtype=torch.float32, trust_remote_code=False)
        except (ValueError, ImportError) as error:
            reason = " ".join(str(error).split())[:300]
            raise HandoffError(
                f"{source.folder}: the image encoder cannot be built ({reason})."
            ) from None
        self.unread = frozenset(
            name for name in model.state_dict() if set(name.split(".")) & set(_HEADS)
        )
        self.network = _without_heads(model)
        patch = getattr(self.config, "patch_size", 0)
        patches = tuple(patch) if isinstance(patch, list | tuple) else (patch, patch)
        self.grid = tuple(
            edge // side if side else 0 for edge, side in zip(source.size, patches, strict=True)
        )
        self.prefixes = {0, 1, 1 + getattr(self.config, "num_register_tokens", 0)}

    def forward(self, image_NCHW: Tensor) -> Tensor:
        """The maps.

        Raises:
            HandoffError: an output that is no map, or tokens that do not form one.
        """
        hidden = getattr(self.network(pixel_values=image_NCHW), "last_hidden_state", None)
        if hidden is not None and hidden.ndim == 4:
            return hidden.permute(0, 2, 3, 1)
        rows, columns = self.grid
        count = 0 if hidden is None else hidden.shape[1]
        prefix = count - rows * columns
        if hidden is None or not rows * columns or prefix not in self.prefixes:
            raise HandoffError(
                f"{self.folder}: the output of '{self.config.model_type}' is {count} tokens, expected a feature map, "
                f"or a token for each of {rows} x {columns} patches behind at most {max(self.prefixes)} others."
            )
        return hidden[:, prefix:].unflatten(1, (rows, columns))

    def load(self, folder: Path) -> None:
        """Sets the weights to those in `folder`; see `load_pretrained`."""
        from transformers import AutoModel

        model = load_pretrained(
            AutoModel.from_pretrained,
            folder,
            "image encoder",
            self.unread,
            attention=None,
            config=self.config,
        )
        self.network.load_state_dict(_without_heads(model).state_dict())


def _transformers_config(source: ImageModel) -> Any:
    """Configuration of transformers, of a model of pictures and words that of its vision tower.

    Raises:
        HandoffError: transformers does not know the model, or it would read further weights.
    """
    try:
        from transformers import CONFIG_MAPPING
    except ImportError:
        raise HandoffError(
            f"image_encoder: transformers is not installed. Install it in the checkout: {pip_install('language')}."
        ) from None
    family = str(source.config.get("model_type"))
    if family not in CONFIG_MAPPING or {"backbone", "use_timm_backbone"} & source.config.keys():
        raise HandoffError(
            f"{source.folder}: model_type is '{family}', which transformers does not know or which is built on "
            "another model. Supported are single vision models, such as dinov2, siglip, vit and resnet."
        )
    config = CONFIG_MAPPING[family].from_dict(dict(source.config))
    return getattr(config, "vision_config", config)


def _without_heads(model: nn.Module) -> nn.Module:
    """The model with nothing in place of its pooling layers."""
    for part in list(model.modules()):
        for name, child in part.named_children():
            if name in _HEADS and next(child.parameters(), None) is not None:
                setattr(part, name, nn.Identity())
    return model


class _TimmModel(nn.Module):
    """Scaled images (N, 3, H, W) to maps (N, rows, columns, C) by a model of timm."""

    def __init__(self, source: ImageModel) -> None:
        super().__init__()
        self.folder = source.folder
        self.network = _timm_network(source)

    def forward(self, image_NCHW: Tensor) -> Tensor:
        """The maps.

        Raises:
            HandoffError: tokens that do not form a map.
        """
        hidden = self.network.forward_features(image_NCHW)
        if hidden.ndim == 4:
            first = getattr(self.network, "output_fmt", "NCHW") == "NCHW"
            return hidden.permute(0, 2, 3, 1) if first else hidden
        rows, columns = getattr(getattr(self.network, "patch_embed", None), "grid_size", (0, 0))
        prefix = getattr(self.network, "num_prefix_tokens", 0)
        if hidden.ndim != 3 or not rows or hidden.shape[1] != prefix + rows * columns:
            raise HandoffError(
                f"{self.folder}: the output of timm's model has the shape {tuple(hidden.shape)}, expected a feature "
                f"map, or a token for each of {rows} x {columns} patches behind {prefix} others."
            )
        return hidden[:, prefix:].unflatten(1, (rows, columns))

    def load(self, folder: Path) -> None:
        """Sets the weights to those in `folder`; the head of its classifier is not read.

        Raises:
            HandoffError: see `FolderTrunk.load_pretrained`.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            weights = load_file(folder / WEIGHTS)
        except (OSError, SafetensorError) as error:
            raise HandoffError(
                f"{folder}: the image encoder's weights cannot be read ({error}). Was it copied whole?"
            ) from None
        wanted: Mapping[str, Tensor] = self.network.state_dict()
        wrong = sorted(
            name
            for name, tensor in wanted.items()
            if name not in weights or weights[name].shape != tensor.shape
        )
        if wrong:
            raise HandoffError(
                f"{folder}: {len(wrong)} weights are missing or have another shape, the first is {wrong[0]}."
            )
        self.network.load_state_dict({name: weights[name] for name in wanted})


def _timm_network(source: ImageModel) -> Any:
    """The model of timm without its classifier.

    Raises:
        HandoffError: timm is not installed, does not know the architecture, or refuses its options.
    """
    try:
        import timm  # pyright: ignore[reportMissingImports]
    except (ImportError, RuntimeError) as error:
        raise HandoffError(
            f"image_encoder: {source.folder} is a model of timm, which cannot be imported ({error}). Install it in "
            f"the checkout, with the build of torchvision that belongs to torch: {pip_install('timm')}."
        ) from None
    name, options = str(source.config["architecture"]), source.config.get("model_args") or {}
    # Names with a scheme, and some options, would read other files or ask a hub.
    reserved = {*inspect.signature(timm.create_model).parameters, "features_only"} - {"kwargs"}
    if not timm.is_model(name) or not isinstance(options, dict) or reserved & options.keys():
        raise HandoffError(
            f"{source.folder}: architecture '{name}' with model_args {options}, expected a name that timm knows and "
            f"options of the model other than {', '.join(sorted(reserved))}."
        )
    try:
        return timm.create_model(name, pretrained=False, **{**options, "num_classes": 0})
    except (TypeError, ValueError, RuntimeError) as error:
        raise HandoffError(
            f"{source.folder}: timm cannot build '{name}' with model_args {options} ({error})."
        ) from None
