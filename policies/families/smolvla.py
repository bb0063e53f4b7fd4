"""Starts a `vla` policy from the weights of a SmolVLA checkpoint, in the files of LeRobot's
`lerobot/smolvla_base`: `config.json` and `model.safetensors`.

This follows LeRobot 0.6.1 (`policies/smolvla`; arXiv 2506.01844). A checkpoint names its backbone
without its configuration and tokenizer, so the folder of SmolVLM2 gives those. A setting that
changes what the network computes and is not implemented is an error, as is one that is not known;
those of the optimiser, of LeRobot's hub and of its data are not read. The normalisers of a
checkpoint are not read either: a policy has those of its training data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from policies.card import Shapes
from policies.networks.vlm import VisionLanguageModel
from policies.policy_config import VlaConfig
from robots.errors import HandoffError

FOLDER = "smolvla"
"""Folder, next to a policy's weights, with the configuration of the checkpoint that it started
from."""
CONFIG = "config.json"
WEIGHTS = "model.safetensors"

_IMPLEMENTED: Mapping[str, Any] = {
    "type": "smolvla",
    "n_obs_steps": 1,
    "attention_mode": "cross_attn",
    "add_image_special_tokens": False,
    "adapt_to_pi_aloha": False,
    "use_delta_joint_actions_aloha": False,
    "use_peft": False,
    "rtc_config": None,
    "min_period": 0.004,
    "max_period": 4.0,
    "normalization_mapping": {"VISUAL": "IDENTITY", "STATE": "MEAN_STD", "ACTION": "MEAN_STD"},
}
"""The only supported values of settings; a setting that is left out has this value in LeRobot,
too, except `attention_mode`'s and `type`'s, which every file has."""
_SIZES = (
    "max_state_dim",
    "max_action_dim",
    "resize_imgs_with_padding",
    "num_vlm_layers",
    "num_expert_layers",
    "self_attn_every_n_layers",
    "expert_width_multiplier",
)
"""Settings that give sizes, which every file has."""
_DATA = (
    "input_features",
    "output_features",
    "chunk_size",
    "n_action_steps",
    "num_steps",
    "empty_cameras",
    "prefix_length",
    "pad_language_to",
    "tokenizer_max_length",
)
"""Settings of data, sampler and length of a chunk, which a policy sets itself. Padding of the
prefix and cameras that are not there are masked and not counted, so they change nothing."""
_TRAINING = (
    "vlm_model_name",
    "load_vlm_weights",
    "use_cache",
    "compile_model",
    "compile_mode",
    "device",
    "use_amp",
    "freeze_vision_encoder",
    "train_expert_only",
    "train_state_proj",
    "optimizer_lr",
    "optimizer_betas",
    "optimizer_eps",
    "optimizer_weight_decay",
    "optimizer_grad_clip_norm",
    "scheduler_warmup_steps",
    "scheduler_decay_steps",
    "scheduler_decay_lr",
    "push_to_hub",
    "repo_id",
    "private",
    "tags",
    "license",
    "pretrained_path",
    "pretrained_revision",
)
"""Settings of the backbone by name, of computation, training and the hub, which change nothing in
what the network computes."""
_EXPERT, _VLM = "model.vlm_with_expert.lm_expert.", "model.vlm_with_expert.vlm.model."
_NAMES = (
    (r"backbone\.state_projections\.0\.(\w+)", r"model.state_proj.\1"),
    (r"expert\.embed\.(\w+)", r"model.action_in_proj.\1"),
    (r"expert\.out\.(\w+)", r"model.action_out_proj.\1"),
    (r"expert\.join\.0\.(\w+)", r"model.action_time_mlp_in.\1"),
    (r"expert\.join\.1\.(\w+)", r"model.action_time_mlp_out.\1"),
    (r"expert\.norm\.weight", rf"{_EXPERT}norm.weight"),
    (r"expert\.(layers\.\d+)\.([qkvo]_proj\.\w+)", rf"{_EXPERT}\1.self_attn.\2"),
    (r"expert\.(layers\.\d+)\.((?:gate|up|down)_proj\.\w+)", rf"{_EXPERT}\1.mlp.\2"),
    (r"expert\.(layers\.\d+)\.attention_norm\.(\w+)", rf"{_EXPERT}\1.input_layernorm.\2"),
    (
        r"expert\.(layers\.\d+)\.feedforward_norm\.(\w+)",
        rf"{_EXPERT}\1.post_attention_layernorm.\2",
    ),
    (r"backbone\.text\.(.+)", rf"{_VLM}text_model.\1"),
    (r"backbone\.vision\.(.+)", rf"{_VLM}vision_model.\1"),
    (r"backbone\.connector\.(.+)", rf"{_VLM}connector.\1"),
)
"""Patterns of our names of weights, and the checkpoint's names."""
_UNREAD_WEIGHTS = re.compile(
    r"model\.vlm_with_expert\.vlm\.lm_head\.weight"
    r"|(normalize_inputs|normalize_targets|unnormalize_outputs)\..*"
)
"""Weights that no policy has: the language head, and the normalisers of LeRobot's older files."""
_SHOWN = 3


@dataclass(frozen=True)
class SmolvlaCheckpoint:
    """A checkpoint's configuration."""

    folder: Path
    """Where the configuration was read."""
    state: int
    """Entries to which the state is padded."""
    action: int
    """Entries to which actions are padded."""
    settings: Mapping[str, Any]
    """Content of the file."""
    file: bytes
    """The file."""


def read_checkpoint(config: VlaConfig, saved: Path | None) -> SmolvlaCheckpoint | None:
    """The configuration of the checkpoint that a policy starts from, or started from; None for a
    policy without one.

    Args:
        config: configuration of the policy.
        saved: folder of a policy that keeps the file; None reads it in the checkpoint's folder.

    Raises:
        HandoffError: no backbone's folder, or a file that is missing, damaged or has a setting
            that is not supported.
    """
    if config.checkpoint is None:
        return None
    if config.backbone.folder is None or config.state_tokens != "one":
        raise HandoffError(
            f"policy: checkpoint with backbone.folder {config.backbone.folder!r} and state_tokens "
            f"'{config.state_tokens}', expected the folder of the checkpoint's vlm_model_name, for its configuration "
            "and tokenizer, and 'one'."
        )
    folder = Path(config.checkpoint) if saved is None else saved / FOLDER
    data, settings = _read(folder / CONFIG)
    _check_settings(folder / CONFIG, settings)
    state, action = settings["max_state_dim"], settings["max_action_dim"]
    return SmolvlaCheckpoint(folder, state, action, settings, data)


def check_data(checkpoint: SmolvlaCheckpoint, shapes: Shapes) -> None:
    """Checks that state and actions fit into the checkpoint's, and that there are cameras.

    Raises:
        HandoffError: they do not.
    """
    fits = 1 <= shapes.observation <= checkpoint.state and shapes.action <= checkpoint.action
    if not fits or not shapes.sensors:
        raise HandoffError(
            f"{checkpoint.folder}: {shapes.observation} entries of state, {shapes.action} of an action and "
            f"{len(shapes.sensors)} cameras, expected 1 to {checkpoint.state}, at most {checkpoint.action} and at "
            "least one. Set observation_fields and image_fields."
        )


def check_sizes(
    checkpoint: SmolvlaCheckpoint, config: VlaConfig, backbone: VisionLanguageModel
) -> None:
    """Checks that a policy computes what the checkpoint's settings say.

    Raises:
        HandoffError: sizes or a backbone that differ, by name.
    """
    own, settings = backbone.source, checkpoint.settings
    text = own.config.text_config
    layers, expert = settings["num_vlm_layers"], settings["num_expert_layers"]
    released = {
        "n_obs_steps": (config.n_obs_steps, 1),
        "expert_width": (config.expert_width, settings["expert_width_multiplier"]),
        "self_attention_every": (
            config.self_attention_every,
            settings["self_attn_every_n_layers"],
        ),
        # A number up to 0 means all layers.
        "backbone.layers": (backbone.layers, layers if layers > 0 else backbone.layers),
        "expert_layers": (
            backbone.layers if config.expert_layers is None else config.expert_layers,
            expert if expert > 0 else backbone.layers,
        ),
        "the backbone's image_size": (
            [backbone.image_size] * 2,
            settings["resize_imgs_with_padding"],
        ),
        "the backbone's image_mean and image_std": ({*own.mean, *own.std}, {0.5}),
        "the backbone's model_type": (own.config.model_type, "smolvlm"),
        "the backbone's text layers": (
            (text.model_type, text.rms_norm_eps, text.hidden_act, text.attention_bias),
            ("llama", 1e-5, "silu", False),
        ),
    }
    wrong = [
        f"{name} is {own_value}, expected {value}"
        for name, (own_value, value) in released.items()
        if own_value != value
    ]
    if expert > 0 and expert != backbone.layers:
        wrong.append(
            f"num_expert_layers is {expert} for {backbone.layers} layers of the backbone, expected as many"
        )
    if wrong:
        raise HandoffError(
            f"{checkpoint.folder}: the policy differs from the checkpoint: {'; '.join(wrong)}."
        )


def load_weights(checkpoint: SmolvlaCheckpoint, policy: nn.Module) -> None:
    """Reads the weights of backbone, expert and projections, strictly, in place.

    Raises:
        HandoffError: a file that cannot be read, or weights that are missing, unexpected or of
            another shape, by name.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    file = checkpoint.folder / WEIGHTS
    try:
        found = load_file(file)
    except (OSError, SafetensorError) as error:
        raise HandoffError(
            f"{file}: cannot be read ({' '.join(str(error).split())[:300]}). Was it copied whole?"
        ) from None
    found = {name: part for name, part in found.items() if not _UNREAD_WEIGHTS.fullmatch(name)}
    wanted = {
        smolvla_name(name): part
        for name, part in policy.named_parameters()
        if name.startswith(("backbone.", "expert.")) and ".lora_" not in name
    }
    _check_weights(file, found, wanted)
    with torch.no_grad():
        for name, part in wanted.items():
            part.copy_(found[name])


def smolvla_name(name: str) -> str:
    """The checkpoint's name of a weight of `VlaPolicy`; that of an adapted layer is its plain
    one's.

    Raises:
        HandoffError: no such name.
    """
    plain = name.replace(".base_layer.", ".")
    for pattern, replacement in _NAMES:
        if re.fullmatch(pattern, plain):
            return re.sub(pattern, replacement, plain)
    raise HandoffError(f"smolvla: the weight {name} has no name in a checkpoint.")


def padded_noise(noise_BHA: Tensor, entries: int) -> Tensor:
    """Noise (B, H, entries) from that of the robot's entries: the chunk's noise once more, moved by
    one action, by two, and so on, so that every entry is standard normal.

    SmolVLA draws all entries. A chunk of a policy is a function of the noise of the robot's.
    """
    horizon, size = noise_BHA.shape[1:]
    moved = [
        torch.cat([noise_BHA[:, shift:], noise_BHA[:, :shift]], dim=1)
        for shift in (number % horizon for number in range(-(-entries // size)))
    ]
    return torch.cat(moved, dim=2)[..., :entries]


def _read(file: Path) -> tuple[bytes, dict[str, Any]]:
    try:
        data = file.read_bytes()
        settings = json.loads(data)
    except OSError:
        raise HandoffError(
            f"{file.parent}: no {CONFIG}, expected the folder of a SmolVLA checkpoint. Checkpoints are not downloaded "
            "from a hub."
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise HandoffError(
            f"{file}: not JSON ({error}). Was the file cut short by a copy?"
        ) from None
    if not isinstance(settings, dict) or settings.get("type") != "smolvla":
        kind = settings.get("type") if isinstance(settings, dict) else settings
        raise HandoffError(f"{file}: type is {kind!r}, expected 'smolvla'.")
    return data, settings


def _check_settings(file: Path, settings: Mapping[str, Any]) -> None:
    unknown = sorted(settings.keys() - _IMPLEMENTED.keys() - {*_SIZES, *_DATA, *_TRAINING})
    missing = [name for name in ("attention_mode", *_SIZES) if name not in settings]
    other = [
        f"{name} is {settings[name]!r}, expected {value!r}"
        for name, value in _IMPLEMENTED.items()
        if name in settings and settings[name] != value
    ]
    other += [
        f"{name} is {settings[name]!r}, expected a number"
        for name in _SIZES
        if name in settings
        and name != "resize_imgs_with_padding"
        and (isinstance(settings[name], bool) or not isinstance(settings[name], int | float))
    ]
    complaints = [
        *(f"{name} is a setting that is not known" for name in unknown),
        *(f"{name} is missing" for name in missing),
        *other,
    ]
    if complaints:
        raise HandoffError(f"{file}: not implemented: {'; '.join(complaints)}.")


def _check_weights(file: Path, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    other = [
        f"{name} {tuple(found[name].shape)} in place of {tuple(wanted[name].shape)}"
        for name in sorted(found.keys() & wanted.keys())
        if found[name].shape != wanted[name].shape
    ]
    kinds = {
        "missing": sorted(wanted.keys() - found.keys()),
        "unexpected": sorted(found.keys() - wanted.keys()),
        "of another shape": other,
    }
    if any(kinds.values()):
        lines = [f"{len(names)} {kind}: {_first(names)}" for kind, names in kinds.items() if names]
        raise HandoffError(
            f"{file}: the weights are not those of the policy: {'; '.join(lines)}. Is the checkpoint another model's?"
        )


def _first(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and others"
