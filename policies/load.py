"""Builds and loads policies of any family: untrained modules, trained modules, and functions of
NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from policies.card import PolicyCard, Shapes
from policies.checkpoint import read_card, read_weights
from policies.chunk_policy_config import ChunkPolicyConfig, EncodedPolicyConfig
from policies.families.lora import merge_adapters
from policies.language.config import SentenceEncoderConfig, require_folder
from policies.language.sentence_encoder import FOLDER, SentenceEncoder
from policies.networks.config import FolderEncoderConfig
from policies.networks.images.image_model import FOLDER as IMAGE_FOLDER
from policies.networks.images.image_model import ImageModel, read_image_model
from policies.networks.observation_encoder import ObservationEncoder
from policies.policy import ChunkPolicy
from policies.policy_config import (
    ActConfig,
    BehaviourCloningConfig,
    BesoConfig,
    CoarseToFinePolicyConfig,
    DiffusionPolicyConfig,
    LearnedActorConfig,
    PolicyConfig,
    TokenVlaConfig,
    VlaConfig,
)
from robots.errors import HandoffError
from robots.interfaces import MultimodalPolicy, PolicyInput
from robots.outside import find_outside


def new_module(config: PolicyConfig, shapes: Shapes, saved: Path | None = None) -> ChunkPolicy:
    """An untrained policy on the CPU. Its weights are drawn from torch's random state, those of a
    pretrained backbone, trunk or sentence encoder are read from their folder or package.

    Args:
        config: configuration of the family.
        shapes: sizes given by the data.
        saved: folder of the policy whose weights will be loaded into the module; pretrained weights
            are then not read, and a sentence encoder and the description of an image model are read
            from it.

    Raises:
        HandoffError: sizes that do not fit together, or a backbone or sentence encoder that cannot
            be read.
    """
    module = _new_module(config, shapes, saved)
    if saved is None:
        for part in module.modules():
            if isinstance(part, ObservationEncoder):
                part.load_pretrained()
    return module


def _new_module(config: PolicyConfig, shapes: Shapes, saved: Path | None) -> ChunkPolicy:
    match config:
        case DiffusionPolicyConfig():
            from policies.families.diffusion import DiffusionPolicy

            return DiffusionPolicy(config, shapes, *_pretrained_parts(config, saved))
        case ActConfig():
            from policies.families.act import ActPolicy

            return ActPolicy(config, shapes, _sentences(config.language, saved))
        case BehaviourCloningConfig():
            from policies.families.behaviour_cloning import BehaviourCloningPolicy

            return BehaviourCloningPolicy(config, shapes, *_pretrained_parts(config, saved))
        case BesoConfig():
            from policies.families.beso import BesoPolicy

            return BesoPolicy(config, shapes, *_pretrained_parts(config, saved))
        case VlaConfig():
            from policies.families.vla import VlaPolicy

            return VlaPolicy(config, shapes, saved)
        case TokenVlaConfig():
            from policies.families.token_vla import TokenVlaPolicy

            return TokenVlaPolicy(config, shapes, saved)
        case LearnedActorConfig():
            from policies.families.rl_actor import LearnedActor

            return LearnedActor(config, shapes)
        case CoarseToFinePolicyConfig():
            from policies.families.coarse_to_fine import CoarseToFinePolicy

            return CoarseToFinePolicy(config, shapes)
        case _:
            return _outside_policy(config, shapes)


def _sentences(
    language: SentenceEncoderConfig | None, saved: Path | None
) -> SentenceEncoder | None:
    """The sentence encoder of a policy; None for one without."""
    if language is None:
        return None
    return SentenceEncoder(language, require_folder(language) if saved is None else saved / FOLDER)


def _pretrained_parts(
    config: EncodedPolicyConfig, saved: Path | None
) -> tuple[SentenceEncoder | None, ImageModel | None]:
    """The sentence encoder and the image model of a saved policy; a new one reads its image model
    from the configured folder."""
    image_model = None
    described = isinstance(config.image_encoder, FolderEncoderConfig) and config.image_fields
    if saved is not None and described:
        image_model = read_image_model(saved / IMAGE_FOLDER)
    return _sentences(config.language, saved), image_model


def _outside_policy(config: ChunkPolicyConfig, shapes: Shapes) -> ChunkPolicy:
    """An untrained policy of a family outside Handoff, whose configuration names its class."""
    about = f"policy: the family of {type(config).__module__}.{type(config).__qualname__}"
    if not config.family:
        raise HandoffError(f"{about} states no policy class: `family` is empty.")
    return find_outside(config.family, "", about, "policy class")(config, shapes)


def load_module(
    path: Path, steps: int | None = None, device: str = "cpu", *, trainable: bool = False
) -> tuple[ChunkPolicy, PolicyCard]:
    """The policy in the directory `path`, ready for inference, and its card.

    Args:
        path: folder of a policy, e.g. written by the stage `pretrain` or `distill`.
        steps: sampler steps; None keeps the policy's own number.
        device: torch device.
        trainable: whether parameters that were trained may be trained further, such as adapters in
            a frozen backbone.

    Raises:
        HandoffError: the folder has no policy, a damaged one, or one whose sampler does not support
            this number of steps.
    """
    card = read_card(path)
    module = new_module(card.model, card.shapes, path)
    try:
        module.load_state_dict(read_weights(path))
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise HandoffError(
            f"{path}: weights and config.json disagree: {reason}. Was one of them replaced?"
        ) from None
    if steps is not None:
        module.set_sampler_steps(steps)
    return (module if trainable else module.requires_grad_(False)).eval().to(device), card


def load_policy(path: Path, steps: int | None = None, device: str = "cpu") -> MultimodalPolicy:
    """The policy in the directory `path` as a function of NumPy arrays; arguments and errors of
    `load_module`."""
    module, card = load_module(path, steps, device)
    merge_adapters(module)

    @torch.no_grad()
    def policy(observation: np.ndarray | PolicyInput, noise: np.ndarray) -> np.ndarray:
        inputs = observation if isinstance(observation, PolicyInput) else PolicyInput(observation)
        _check("observation", inputs.vector, (len(noise), *module.observation_shape))
        _check("noise", noise, (len(inputs.vector), *module.chunk_shape))
        _check_sensors(inputs.sensors, card, len(noise))
        vector, noise_tensor = (
            torch.from_numpy(np.ascontiguousarray(a, np.float32)) for a in (inputs.vector, noise)
        )
        sensors = {
            name: torch.from_numpy(array).to(device) for name, array in inputs.sensors.items()
        }
        goal = None
        if inputs.goal is not None:
            _check("goal", inputs.goal, (len(noise), module.observation_shape[1]))
            goal = torch.from_numpy(np.ascontiguousarray(inputs.goal, np.float32)).to(device)
        decided = None
        if inputs.prefix is not None:
            shape = (len(noise), card.model.most_decided, module.chunk_shape[1] + 1)
            _check("prefix", inputs.prefix, shape)
            decided = torch.from_numpy(np.ascontiguousarray(inputs.prefix, np.float32)).to(device)
        chunk = module(
            vector.to(device),
            noise_tensor.to(device),
            sensors,
            inputs.instructions,
            goal,
            prefix_BPE=decided,
        )
        return chunk.cpu().numpy()

    return policy


def _check_sensors(sensors: Mapping[str, np.ndarray], card: PolicyCard, rows: int) -> None:
    if sensors.keys() != card.sensors.keys():
        raise HandoffError(
            f"policy: sensors are {sorted(sensors)}, expected {sorted(card.sensors)}. Another task?"
        )
    for name, spec in card.sensors.items():
        _check(name, sensors[name], (rows, card.model.n_obs_steps, *spec.shape))


def _check(name: str, array: np.ndarray, shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        raise HandoffError(
            f"policy: {name} has shape {array.shape}, expected {shape}. "
            "Does it belong to another task, or lack the batch dimension?"
        )
    if not np.isfinite(array).all():
        raise HandoffError(f"policy: {name} holds a value that is not finite. Was a sensor lost?")
