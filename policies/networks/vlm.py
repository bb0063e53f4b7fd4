"""Hugging Face vision-language models as backbones of policies.

Image, text and state tokens form one sequence, the prefix; the text layers turn it into keys and
values that the action head attends to. Supported are SmolVLM, Idefics3 and PaliGemma of the first
generation, with the modules of transformers; any other `model_type` is an error.

This follows SmolVLA (arXiv 2506.01844) with its released code (lerobot) in the order of the prefix
(images, instruction padded to the longest, one state token), in resizing images with black padding
at the left and top, and in the newline after an instruction. It follows pi0 (arXiv 2410.24164) in
the attention mask: image and text tokens attend to each other, the state to them and itself.
SmolVLA's code scales image and text embeddings by the square root of their width, as Gemma does,
and uses its own rotary frequencies; here both are as the backbone was trained, except in a policy
that starts from released weights (`BackboneCode`).

Shape suffixes: B batch, T observed steps, O observation, L prefix tokens, S queries, K keys, W
width, D head width, V vocabulary, N heads, C channels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, linear, pad

from policies.language.pretrained_folder import load_pretrained
from policies.networks.config import BackboneConfig
from policies.networks.vlm_files import FAMILIES, ModelFiles, read_source
from policies.policy import InstructionTokens
from robots.errors import HandoffError

KeyValues = tuple[tuple[Tensor, Tensor], ...]
"""Rotated keys, and values, of every text layer, each (B, key-value heads, K, D)."""


@dataclass(frozen=True)
class BackboneCode:
    """What the code of a released policy computes otherwise than its backbone was trained."""

    scaled: bool = False
    """Whether image and text embeddings are scaled by the square root of their width."""
    rotary_base: float | None = None
    """Base of the rotary frequencies; None keeps the backbone's."""
    centred: bool = False
    """Whether pictures lie in the middle of their black padding, instead of at the bottom right."""


class Prefix(NamedTuple):
    """Observation and instruction as a token sequence."""

    embedding_BLW: Tensor
    mask_BL: Tensor
    """False for padding, which is masked out and not counted in positions."""
    state_tokens: int = 0
    """Number of state tokens at the end; image and text tokens do not attend to them."""


class VisionLanguageModel(nn.Module):
    """Vision tower, connector and text layers of a pretrained model, and a projection of the state.

    Args:
        source: files of the model.
        model: model of transformers, with a language head.
        config: options of the backbone.
        state: number of entries of every state token; empty without state.
        head: whether to keep the language head, for `logits`.
        keep_vision: whether to keep the vision tower.
        shared: whether state tokens of the same size share a projection and differ by a learned
            name embedding.
        code: what a released policy computes otherwise; the rotary frequencies are part of
            `source`.
    """

    def __init__(
        self,
        source: ModelFiles,
        model: Any,
        config: BackboneConfig,
        state: Sequence[int],
        head: bool,
        keep_vision: bool,
        shared: bool = False,
        code: BackboneCode | None = None,
    ) -> None:
        super().__init__()
        self._code = code or BackboneCode()
        parts = FAMILIES[source.config.model_type]
        self.text, vision_tower, connector = (getattr(model.model, part) for part in parts)
        self.vision, self.connector = (vision_tower, connector) if keep_vision else (None, None)
        text, vision = source.config.text_config, source.config.vision_config
        self.width: int = text.hidden_size
        self.layers: int = text.num_hidden_layers
        self.heads: int = text.num_attention_heads
        self.kv_heads: int = text.num_key_value_heads
        self.head_dim: int = getattr(text, "head_dim", None) or self.width // self.heads
        self.deviation: float = text.initializer_range
        """Standard deviation with which its weights were initialised."""
        self.image_size: int = vision.image_size
        shrunk = vision.patch_size * getattr(source.config, "scale_factor", 1)
        self.image_tokens: int = (vision.image_size // shrunk) ** 2
        self.embedding_scale: float = self.width**0.5 if self._code.scaled else 1.0
        """Factor of image and text embeddings."""
        self.source = source
        self._scales: dict[torch.device, tuple[Tensor, ...]] = {}
        self.instruction_tokens = config.instruction_tokens
        self.tied: bool = model.lm_head.weight is self.text.embed_tokens.weight
        self.head = model.lm_head if head and not self.tied else None
        kinds = list(dict.fromkeys(state)) if shared else list(state)
        self._kinds = [kinds.index(size) for size in state] if shared else list(range(len(state)))
        self.state_projections = nn.ModuleList(
            _state_projection(size, self.width, len(state)) for size in kinds
        )
        names = self.deviation * torch.randn(len(state), self.width) if shared else None
        self.state_names = None if names is None else nn.Parameter(names)

    def text_layers(self) -> nn.ModuleList:
        """The text model's transformer layers, in order."""
        return self.text.layers

    def prefix(
        self,
        sensors_BTHWC: Mapping[str, Tensor],
        instruction: InstructionTokens,
        state: Sequence[Tensor],
    ) -> Prefix:
        """The prefix: image tokens of each camera in the order of their names, text tokens, state
        tokens.

        Args:
            sensors_BTHWC: per camera uint8 RGB; the newest step is used.
            instruction: tokens of B sentences, see `tokens`.
            state: (B, entries) of every state token, normalised.

        Raises:
            HandoffError: images without a vision tower, or the reverse.
        """
        # Image tokens of each camera.
        if bool(sensors_BTHWC) != (self.vision is not None):
            raise HandoffError(
                f"backbone: got {len(sensors_BTHWC)} cameras, but has {'a' if self.vision else 'no'} vision "
                "tower. Set the cameras in image_fields."
            )
        images = [
            self.image_embeddings(sensors_BTHWC[name][:, -1]) for name in sorted(sensors_BTHWC)
        ]
        # One token per part of the state.
        projections = [self.state_projections[kind] for kind in self._kinds]
        state_tokens = [
            project(entries)[:, None] for project, entries in zip(projections, state, strict=True)
        ]
        if self.state_names is not None:
            state_tokens = [
                token_B1W + name_W
                for token_B1W, name_W in zip(state_tokens, self.state_names, strict=True)
            ]
        # Concatenate tokens and masks.
        context = [*images, self.text.embed_tokens(instruction.token_BL)]
        if self.embedding_scale != 1.0:
            context = [part * self.embedding_scale for part in context]
        parts = [*context, *state_tokens]
        rows, dtype = len(instruction.token_BL), self.text.embed_tokens.weight.dtype
        image_mask_BL = instruction.mask_BL.new_ones(rows, sum(part.shape[1] for part in images))
        mask_BL = torch.cat(
            [
                image_mask_BL,
                instruction.mask_BL,
                instruction.mask_BL.new_ones(rows, len(state_tokens)),
            ],
            dim=1,
        )
        return Prefix(
            torch.cat([part.to(dtype) for part in parts], dim=1), mask_BL, len(state_tokens)
        )

    def image_embeddings(self, image_BHWC: Tensor) -> Tensor:
        """Embeddings (B, image_tokens, W) of uint8 RGB images; requires the vision tower."""
        assert self.vision is not None
        assert self.connector is not None
        pixel_BCHW = image_BHWC.movedim(-1, 1).float() / 255.0
        pixel_BCHW = padded_image(pixel_BCHW, self.image_size, self._code.centred)
        device = pixel_BCHW.device
        if device not in self._scales:
            # Kept, because a copy to the device would make the host wait in every call.
            self._scales[device] = tuple(
                pixel_BCHW.new_tensor(part)[:, None, None]
                for part in (self.source.mean, self.source.std)
            )
        mean_C11, std_C11 = self._scales[device]
        pixel_BCHW = (pixel_BCHW - mean_C11) / std_C11
        return self.connector(_vision_features(self.vision, pixel_BCHW))

    def tokens(self, instructions: Sequence[str]) -> InstructionTokens:
        """Tokenizes instructions, each ending with a newline and padded to the longest.

        Raises:
            HandoffError: an instruction is too long.
        """
        lines = [text if text.endswith("\n") else f"{text}\n" for text in instructions]
        token_ids = {line: self.source.tokenizer.encode(line).ids for line in set(lines)}
        longest = max(token_ids, key=lambda line: len(token_ids[line]))
        length = len(token_ids[longest])
        if length > self.instruction_tokens:
            raise HandoffError(
                f"backbone: instruction {longest.strip()[:60]!r} has {length} tokens, the maximum is "
                f"{self.instruction_tokens}. Raise backbone.instruction_tokens."
            )
        device = self.text.embed_tokens.weight.device
        token_UL = torch.zeros(len(token_ids), length, dtype=torch.long)
        mask_UL = torch.zeros(len(token_ids), length, dtype=torch.bool)
        for row, ids in enumerate(token_ids.values()):
            token_UL[row, : len(ids)] = torch.tensor(ids)
            mask_UL[row, : len(ids)] = True
        row_of = {line: row for row, line in enumerate(token_ids)}
        row_B = torch.tensor([row_of[line] for line in lines])
        return InstructionTokens(token_UL[row_B].to(device), mask_UL[row_B].to(device))

    def forward_prefix(self, prefix: Prefix) -> KeyValues:
        """Keys and values of every text layer, computed once for all steps of a sampler.

        With a frozen backbone, activations for the backward pass are stored for the state tokens
        only: no trained parameter affects the tokens before them, which do not attend to them.
        """
        allowed_BLL, position_BL = prefix_mask(prefix), positions(prefix.mask_BL)
        split = prefix.embedding_BLW.shape[1] - prefix.state_tokens
        if not (self.frozen() and prefix.embedding_BLW.requires_grad and prefix.state_tokens):
            return self.forward_text(prefix.embedding_BLW, allowed_BLL, position_BL)[1]
        context_BLW = prefix.embedding_BLW[:, :split].detach()
        past = self.forward_text(
            context_BLW, allowed_BLL[:, :split, :split], position_BL[:, :split]
        )[1]
        state_BLW = prefix.embedding_BLW[:, split:]
        return self.forward_text(state_BLW, allowed_BLL[:, split:], position_BL[:, split:], past)[1]

    def frozen(self) -> bool:
        """Whether only the projection of the state is trained."""
        pretrained = [part for part in (self.text, self.vision, self.connector) if part is not None]
        return not any(
            parameter.requires_grad for part in pretrained for parameter in part.parameters()
        )

    def forward_text(
        self, embedding_BSW: Tensor, allowed_BSK: Tensor, position_BS: Tensor, past: KeyValues = ()
    ) -> tuple[Tensor, KeyValues]:
        """Runs the text layers and their final norm: hidden states (B, S, W), and all keys and
        values, `past` first.

        Args:
            embedding_BSW: new tokens.
            allowed_BSK: True where a new token attends to a key, those of `past` first.
            position_BS: positions of the new tokens.
            past: keys and values of the previous tokens.
        """
        from transformers import DynamicCache

        cache = DynamicCache()
        for number, (key_BNKD, value_BNKD) in enumerate(past):
            cache.update(key_BNKD, value_BNKD, number)
        output = self.text(
            inputs_embeds=embedding_BSW,
            attention_mask=allowed_BSK[:, None],
            position_ids=position_BS,
            past_key_values=cache,
            use_cache=True,
        )
        layers = cache.layers[: self.layers]
        return output.last_hidden_state, tuple((layer.keys, layer.values) for layer in layers)  # type: ignore[misc]

    def rotary(
        self, position_BS: Tensor, dtype: torch.dtype = torch.float32
    ) -> tuple[Tensor, Tensor]:
        """Cosine and sine (B, S, D) of the rotary embedding at these positions, see `rotated`."""
        like = torch.empty(0, dtype=dtype, device=position_BS.device)
        return self.text.rotary_emb(like, position_ids=position_BS)

    def logits(self, hidden_BSW: Tensor) -> Tensor:
        """Logits (B, S, V) of the language head, or of the embedding's weights if the two are tied.

        Raises:
            HandoffError: the head is not tied and was not kept.
        """
        if self.head is None and not self.tied:
            raise HandoffError("backbone: its language head was not kept when it was loaded.")
        return (
            self.head(hidden_BSW)
            if self.head is not None
            else linear(hidden_BSW, self.text.embed_tokens.weight)
        )

    def files(self) -> dict[str, bytes]:
        """Files by name from which the same architecture can be built without weights."""
        return dict(self.source.files)


def _state_projection(size: int, width: int, tokens: int) -> nn.Module:
    """Projection to one state token: SmolVLA's linear map for a single token, otherwise OFT's two
    layers (arXiv 2502.19645), because with few entries a linear map's bias would dominate after the
    first norm."""
    if tokens == 1:
        return nn.Linear(size, width)
    return nn.Sequential(nn.Linear(size, width), nn.GELU(), nn.Linear(width, width))


def prefix_mask(prefix: Prefix) -> Tensor:
    """Attention mask (B, L, L): True where the token of a row attends to that of a column."""
    length = prefix.mask_BL.shape[1]
    is_state_L = torch.arange(length, device=prefix.mask_BL.device) >= length - prefix.state_tokens
    return prefix.mask_BL[:, None, :] & (is_state_L[:, None] | ~is_state_L[None, :])


def positions(mask_BL: Tensor) -> Tensor:
    """Positions (B, L) of the tokens; padding is not counted."""
    return (mask_BL.long().cumsum(dim=1) - 1).clamp(min=0)


def rotated(heads_BNSD: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Applies the rotary embedding (Su et al. 2021) to queries or keys, as the text layers do."""
    cosine_BSD, sine_BSD = rotary
    first, second = heads_BNSD.chunk(2, dim=-1)
    return (
        heads_BNSD * cosine_BSD[:, None] + torch.cat((-second, first), dim=-1) * sine_BSD[:, None]
    )


def _vision_features(vision: Any, pixel_BCHW: Tensor) -> Tensor:
    """Features (B, L, W) of a vision tower.

    Pictures have no missing patches. A tower that masks patches would read a full mask on the host
    to find that out, once per call.
    """
    embeddings = getattr(vision, "embeddings", None)
    if embeddings is None or "patch_attention_mask" not in signature(embeddings.forward).parameters:
        return vision(pixel_BCHW).last_hidden_state
    rows, columns = (length // vision.patch_size for length in pixel_BCHW.shape[-2:])
    patch_BRC = pixel_BCHW.new_ones((len(pixel_BCHW), rows, columns), dtype=torch.bool)
    hidden_BLW = embeddings(pixel_values=pixel_BCHW, patch_attention_mask=patch_BRC)
    encoded = vision.encoder(inputs_embeds=hidden_BLW, attention_mask=None)
    return vision.post_layernorm(encoded.last_hidden_state)


def padded_image(pixel_BCHW: Tensor, size: int, centred: bool = False) -> Tensor:
    """Resizes images in [0, 1] to squares by their longer side, with black padding at the left and
    top, or on both sides."""
    height, width = pixel_BCHW.shape[-2:]
    scale = size / max(height, width)
    inner = max(1, int(height * scale + 1e-6)), max(1, int(width * scale + 1e-6))
    if inner != (height, width):
        pixel_BCHW = interpolate(pixel_BCHW, inner, mode="bilinear", align_corners=False)
    above, left = (size - length for length in inner)
    if centred:
        above, left = above // 2, left // 2
    return pad(pixel_BCHW, (left, size - inner[1] - left, above, size - inner[0] - above))


def load_backbone(
    config: BackboneConfig,
    weights: bool,
    state: Sequence[int] = (),
    head: bool = False,
    keep_vision: bool = True,
    shared: bool = False,
    code: BackboneCode | None = None,
) -> VisionLanguageModel:
    """Loads the model in the local folder `config.folder`, or builds one from scratch; in float32
    on the CPU.

    Args:
        config: options of the backbone.
        weights: whether to read pretrained weights; otherwise, and from scratch, they are random.
        state: number of entries of every state token; empty without state.
        head: whether to keep the language head, for `VisionLanguageModel.logits`.
        keep_vision: whether to keep the vision tower.
        shared: see `VisionLanguageModel`.
        code: what a released policy computes otherwise; None changes nothing.

    Raises:
        HandoffError: no such folder, an unsupported family, more layers than the model has, or
            files that are missing or damaged.
    """
    from transformers import AutoModelForImageTextToText

    source = read_source(config)
    if code is not None and code.rotary_base is not None:
        source.config.text_config.rope_parameters = {
            "rope_type": "default",
            "rope_theta": code.rotary_base,
        }
    options = (config, state, head, keep_vision, shared, code)
    # Without pretrained weights, the architecture gets random ones.
    if not weights or config.folder is None:
        model = AutoModelForImageTextToText.from_config(
            source.config, dtype=torch.float32, attn_implementation="sdpa", trust_remote_code=False
        )
        return VisionLanguageModel(source, model, *options)
    # Load pretrained weights from the folder.
    model = load_pretrained(
        AutoModelForImageTextToText.from_pretrained,
        Path(config.folder),
        "backbone",
        frozenset() if head else frozenset({"lm_head.weight"}),
        config=source.config,
    )
    return VisionLanguageModel(source, model, *options)
