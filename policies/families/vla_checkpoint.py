"""Starts a `vla` policy from the weights of a released vision-language-action model, in LeRobot's
files: `config.json` and `model.safetensors`.

`policies.families.smolvla` and `policies.families.pi0` say what their models compute otherwise and
how their weights are named. A checkpoint names its backbone without configuration and tokenizer, so
a folder of the backbone gives those. A setting that changes what the network computes and is not
implemented is an error, as is one that is not known; those of the optimiser, of LeRobot's hub and
of its data are not read. The normalisers of a checkpoint are not read either: a policy has those of
its training data.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from policies.card import Shapes
from policies.networks.action_expert import ExpertLayers
from policies.networks.vlm import BackboneCode, VisionLanguageModel
from policies.policy_config import VlaConfig
from robots.errors import HandoffError

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
COMPUTATION_AND_HUB = (
    "compile_model",
    "compile_mode",
    "device",
    "use_amp",
    "freeze_vision_encoder",
    "train_expert_only",
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
"""Settings of computation, training and the hub that LeRobot's models share; they change nothing in
what the network computes."""
_SHOWN = 3


@dataclass(frozen=True)
class KnownSettings:
    """Settings of a kind of checkpoint."""

    implemented: Mapping[str, Any]
    """The only supported values of settings; a setting that is left out has this value."""
    required: Mapping[str, type | tuple[type, ...]]
    """Settings that every file has, and their types."""
    unread: Sequence[str]
    """Settings that change nothing in what the network computes."""


@dataclass(frozen=True)
class VlaCheckpoint(ABC):
    """The configuration of a checkpoint."""

    kind: ClassVar[str]
    """Value of `type` in its file, and name of the folder, next to a policy's weights, with the
    configuration of the checkpoint that it started from."""
    known: ClassVar[KnownSettings]
    unread_weights: ClassVar[re.Pattern[str]]
    """Names of weights that no policy has."""
    state_in_prefix: ClassVar[bool]
    """Whether the state is a token of the backbone, and not of the expert."""
    backbone_code: ClassVar[BackboneCode]
    """What the model computes otherwise than its backbone was trained."""

    folder: Path
    """Where the configuration was read."""
    settings: Mapping[str, Any]
    """Content of the file."""
    file: bytes
    """The file."""

    @property
    def state(self) -> int:
        """Entries to which the state is padded."""
        return self.settings["max_state_dim"]

    @property
    def action(self) -> int:
        """Entries to which actions are padded."""
        return self.settings["max_action_dim"]

    @property
    @abstractmethod
    def expert_layers(self) -> ExpertLayers:
        """What the layers of the expert compute."""

    @abstractmethod
    def sizes(
        self, config: VlaConfig, backbone: VisionLanguageModel
    ) -> dict[str, tuple[object, object]]:
        """Sizes and settings of a policy by name, each with the value that the checkpoint needs."""

    @abstractmethod
    def weight_name(self, name: str) -> str:
        """The checkpoint's name of a weight of `VlaPolicy`; that of an adapted layer is its plain
        one's.

        Raises:
            HandoffError: no such name.
        """

    def read(self, found: dict[str, Tensor]) -> dict[str, Tensor]:
        """The weights of a file by the names of `weight_name`, with the values of our modules."""
        return found


def read_checkpoint(
    config: VlaConfig, saved: Path | None, kinds: Sequence[type[VlaCheckpoint]]
) -> VlaCheckpoint | None:
    """The configuration of the checkpoint that a policy starts from, or started from; None for a
    policy without one.

    Args:
        config: configuration of the policy.
        saved: folder of a policy that keeps the file; None reads it in the checkpoint's folder.
        kinds: supported kinds.

    Raises:
        HandoffError: no backbone's folder, or a file that is missing, damaged or has a setting
            that is not supported.
    """
    if config.checkpoint is None:
        return None
    if config.backbone.folder is None or config.state_tokens != "one":
        raise HandoffError(
            f"policy: checkpoint with backbone.folder {config.backbone.folder!r} and state_tokens "
            f"'{config.state_tokens}', expected the folder of the checkpoint's backbone, for its configuration and "
            "tokenizer, and 'one'."
        )
    folder = Path(config.checkpoint)
    if saved is not None:
        kept = [saved / kind.kind for kind in kinds if (saved / kind.kind / CONFIG).is_file()]
        folder = kept[0] if kept else saved / kinds[0].kind
    data, settings = _read(folder / CONFIG, [kind.kind for kind in kinds])
    (kind,) = (kind for kind in kinds if kind.kind == settings["type"])
    _check_settings(folder / CONFIG, settings, kind.known)
    return kind(folder, settings, data)


def check_data(checkpoint: VlaCheckpoint, shapes: Shapes) -> None:
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
    checkpoint: VlaCheckpoint, config: VlaConfig, backbone: VisionLanguageModel
) -> None:
    """Checks that a policy computes what the checkpoint's settings say.

    Raises:
        HandoffError: sizes or a backbone that differ, by name.
    """
    wrong = [
        f"{name} is {own}, expected {value}"
        for name, (own, value) in checkpoint.sizes(config, backbone).items()
        if own != value
    ]
    if wrong:
        raise HandoffError(
            f"{checkpoint.folder}: the policy differs from the checkpoint: {'; '.join(wrong)}."
        )


def load_weights(checkpoint: VlaCheckpoint, policy: nn.Module) -> None:
    """Reads the weights of backbone, expert and projections, strictly, in place.

    Raises:
        HandoffError: a file that cannot be read, or weights that are missing, unexpected or of
            another shape, by name.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    file = checkpoint.folder / WEIGHTS
    try:
        found = checkpoint.read(load_file(file))
    except (OSError, SafetensorError) as error:
        raise HandoffError(
            f"{file}: cannot be read ({' '.join(str(error).split())[:300]}). Was it copied whole?"
        ) from None
    unread = checkpoint.unread_weights
    found = {name: part for name, part in found.items() if not unread.fullmatch(name)}
    wanted = {
        checkpoint.weight_name(name): part
        for name, part in policy.named_parameters()
        if name.startswith(("backbone.", "expert.")) and ".lora_" not in name
    }
    _check_weights(file, found, wanted)
    with torch.no_grad():
        for name, part in wanted.items():
            part.copy_(found[name])


def renamed(name: str, names: Sequence[tuple[str, str]], kind: str) -> str:
    """A weight's name by the first of `names`, pairs of pattern and replacement, that fits it; an
    adapted layer has its plain one's.

    Raises:
        HandoffError: none fits.
    """
    plain = name.replace(".base_layer.", ".")
    for pattern, replacement in names:
        if re.fullmatch(pattern, plain):
            return re.sub(pattern, replacement, plain)
    raise HandoffError(f"{kind}: the weight {name} has no name in a checkpoint.")


def expert_names(layers: str) -> tuple[tuple[str, str], ...]:
    """Names for `renamed` of the expert and of the projections of actions and time.

    Args:
        layers: what stands before the names of the expert's layers in the checkpoint.
    """
    block = r"expert\.(layers\.\d+)\."
    return (
        (r"expert\.embed\.(\w+)", r"model.action_in_proj.\1"),
        (r"expert\.out\.(\w+)", r"model.action_out_proj.\1"),
        (r"expert\.join\.0\.(\w+)", r"model.action_time_mlp_in.\1"),
        (r"expert\.join\.1\.(\w+)", r"model.action_time_mlp_out.\1"),
        (r"expert\.norm\.weight", rf"{layers}norm.weight"),
        (rf"{block}([qkvo]_proj\.\w+)", rf"{layers}\1.self_attn.\2"),
        (rf"{block}((?:gate|up|down)_proj\.\w+)", rf"{layers}\1.mlp.\2"),
        (rf"{block}attention_norm\.(\w+)", rf"{layers}\1.input_layernorm.\2"),
        (rf"{block}feedforward_norm\.(\w+)", rf"{layers}\1.post_attention_layernorm.\2"),
    )


def padded_noise(noise_BHA: Tensor, entries: int) -> Tensor:
    """Noise (B, H, entries) from that of the robot's entries: the chunk's noise once more, moved by
    one action, by two, and so on, so that every entry is standard normal.

    SmolVLA and pi0 draw all entries. A chunk of a policy is a function of the noise of the robot's.
    """
    horizon, size = noise_BHA.shape[1:]
    moved = [
        torch.cat([noise_BHA[:, shift:], noise_BHA[:, :shift]], dim=1)
        for shift in (number % horizon for number in range(-(-entries // size)))
    ]
    return torch.cat(moved, dim=2)[..., :entries]


def _read(file: Path, kinds: Sequence[str]) -> tuple[bytes, dict[str, Any]]:
    try:
        data = file.read_bytes()
        settings = json.loads(data)
    except OSError:
        raise HandoffError(
            f"{file.parent}: no {CONFIG}, expected the folder of a checkpoint of {' or '.join(kinds)}. Checkpoints "
            "are not downloaded from a hub."
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise HandoffError(
            f"{file}: not JSON ({error}). Was the file cut short by a copy?"
        ) from None
    if not isinstance(settings, dict) or settings.get("type") not in kinds:
        found = settings.get("type") if isinstance(settings, dict) else settings
        expected = " or ".join(f"'{kind}'" for kind in kinds)
        raise HandoffError(f"{file}: type is {found!r}, expected {expected}.")
    return data, settings


def _check_settings(file: Path, settings: Mapping[str, Any], known: KnownSettings) -> None:
    names = {"type", *known.implemented, *known.required, *known.unread}
    unknown = sorted(settings.keys() - names)
    missing = [name for name in known.required if name not in settings]
    other = [
        f"{name} is {settings[name]!r}, expected {value!r}"
        for name, value in known.implemented.items()
        if name in settings and settings[name] != value
    ]
    other += [
        f"{name} is {settings[name]!r}, expected a {_words(kinds)}"
        for name, kinds in known.required.items()
        if name in settings
        and (isinstance(settings[name], bool) or not isinstance(settings[name], kinds))
    ]
    complaints = [
        *(f"{name} is a setting that is not known" for name in unknown),
        *(f"{name} is missing" for name in missing),
        *other,
    ]
    if complaints:
        raise HandoffError(f"{file}: not implemented: {'; '.join(complaints)}.")


def _words(kinds: type | tuple[type, ...]) -> str:
    return {str: "name", list: "list"}.get(kinds, "number")  # type: ignore[arg-type]


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
