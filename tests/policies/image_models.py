"""Tiny image models with random weights, in folders as their libraries save them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.25)
_TRANSFORMER: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "image_size": 24,
    "patch_size": 8,
}


def write_processor(folder: Path, size: Any, **options: Any) -> None:
    """Writes how pictures are scaled."""
    values = {"size": size, "image_mean": MEAN, "image_std": STD, **options}
    (folder / "preprocessor_config.json").write_text(json.dumps(values))


def write_image_model(folder: Path, family: str = "dinov2") -> Path:
    """A model of transformers for pictures of 24 x 24 px; `dinov2` takes 24 x 32 px, where its
    positions were learned for 40 x 40 px."""
    import transformers as tf

    torch.manual_seed(7)
    match family:
        case "dinov2":
            config = tf.Dinov2Config(**{**_TRANSFORMER, "image_size": 40})
            model = tf.Dinov2Model(config)
        case "dinov2_with_registers":
            config = tf.Dinov2WithRegistersConfig(**_TRANSFORMER, num_register_tokens=3)
            model = tf.Dinov2WithRegistersModel(config)
        case "vit":
            model = tf.ViTForImageClassification(tf.ViTConfig(**_TRANSFORMER))
        case "siglip":
            text = {key: value for key, value in _TRANSFORMER.items() if "_size" not in key}
            text |= {"hidden_size": 16, "intermediate_size": 24, "vocab_size": 20}
            model = tf.SiglipModel(tf.SiglipConfig(vision_config=_TRANSFORMER, text_config=text))
        case "resnet":
            sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}
            model = tf.ResNetForImageClassification(tf.ResNetConfig(**sizes))
        case _:
            raise ValueError(family)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    model.save_pretrained(folder)
    if family == "dinov2":
        crop = {"do_center_crop": True, "crop_size": {"height": 24, "width": 32}}
        write_processor(folder, {"shortest_edge": 40}, **crop)
    elif family == "resnet":
        write_processor(folder, {"shortest_edge": 24})
    else:
        write_processor(folder, {"height": 24, "width": 24})
    return folder
