"""A vision-language model of Hugging Face transformers as the backbone of a policy.

Pictures, words and the robot's state become one sequence, the prefix; the text layers turn it into
keys and values that whatever produces actions attends to. Supported are SmolVLM, Idefics3 and
PaliGemma of the first generation, whose modules are used as transformers has them; other families
are refused by their `model_type`.

Followed is SmolVLA (arXiv 2506.01844) with its released code (lerobot) in the order of the prefix
(pictures, words padded to the longest, one state token), in pictures that are resized with black
padding at the left and top, and in the newline after an instruction; pi0 (arXiv 2410.24164) in who
attends to whom: pictures and words to each other, the state to them and itself. Different from
SmolVLA's code, which multiplies the embeddings of pictures and words by the root of their width as
Gemma does and turns queries and keys by frequencies of its own, both are as the backbone was
trained.

Shape suffixes: B batch, T observed steps, O observation, L prefix tokens, S queries, K keys, W
width, D head width, V vocabulary, N heads, C channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, linear, pad

from policies.networks.config import BackboneConfig
from policies.networks.vlm_files import FAMILIES, ModelFiles, read_source
from policies.policy import Words
from robots.errors import HandoffError

KeyValues = tuple[tuple[Tensor, Tensor], ...]
"""Per text layer the keys, rotated, and the values, each (B, key-value heads, K, D)."""


class Prefix(NamedTuple):
    """What is observed, as a sequence of tokens."""

    embedding_BLW: Tensor
    mask_BL: Tensor
    """False for padding, which nothing attends to and no position is counted for."""
    state_tokens: int = 0
    """So many last tokens are the state; pictures and words do not attend to them."""


class VisionLanguageModel(nn.Module):
    """Vision tower, connector and text layers of a pretrained model, and the projection of the
    state.

    Args:
        source: what was read from the model's folder.
        model: of transformers, with a language head.
        config: which model.
        state: entries of every state token; none where there is no state.
        head: whether to keep the language head, for `logits`.
        sees: whether to keep the vision tower.
        shared: whether state tokens of as many entries share their projection and are told apart by
            a learned name.
    """

    def __init__(
        self,
        source: ModelFiles,
        model: Any,
        config: BackboneConfig,
        state: Sequence[int],
        head: bool,
        sees: bool,
        shared: bool = False,
    ) -> None:
        super().__init__()
        parts = FAMILIES[source.config.model_type]
        self.text, vision_tower, connector = (getattr(model.model, part) for part in parts)
        self.vision, self.connector = (vision_tower, connector) if sees else (None, None)
        text, vision = source.config.text_config, source.config.vision_config
        self.width: int = text.hidden_size
        self.layers: int = text.num_hidden_layers
        self.heads: int = text.num_attention_heads
        self.kv_heads: int = text.num_key_value_heads
        self.head_dim: int = getattr(text, "head_dim", None) or self.width // self.heads
        self.deviation: float = text.initializer_range
        """With which its weights began."""
        self.picture_size: int = vision.image_size
        shrunk = vision.patch_size * getattr(source.config, "scale_factor", 1)
        self.picture_tokens: int = (vision.image_size // shrunk) ** 2
        self.source = source
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
        """The transformer layers that read the prefix, in order."""
        return self.text.layers

    def prefix(
        self, sensors_BTHWC: Mapping[str, Tensor], words: Words, state: Sequence[Tensor]
    ) -> Prefix:
        """What is observed, as tokens: of each camera in the order of their names, of the words, of
        the state.

        Args:
            sensors_BTHWC: per camera uint8 RGB; the newest step is used.
            words: of B sentences, see `tokens`.
            state: (B, entries) of every state token, normalised.

        Raises:
            HandoffError: a camera is missing, or its tower was not kept.
        """
        if bool(sensors_BTHWC) != (self.vision is not None):
            raise HandoffError(
                f"backbone: it is shown {len(sensors_BTHWC)} pictures and has {'a' if self.vision else 'no'} vision "
                "tower. Name the cameras in image_fields."
            )
        pictures = [
            self.picture_embeddings(sensors_BTHWC[name][:, -1]) for name in sorted(sensors_BTHWC)
        ]
        projections = [self.state_projections[kind] for kind in self._kinds]
        shown = [
            project(entries)[:, None] for project, entries in zip(projections, state, strict=True)
        ]
        if self.state_names is not None:
            shown = [
                token_B1W + name_W
                for token_B1W, name_W in zip(shown, self.state_names, strict=True)
            ]
        parts = [*pictures, self.text.embed_tokens(words.token_BL), *shown]
        rows, dtype = len(words.token_BL), self.text.embed_tokens.weight.dtype
        seen_BL = words.mask_BL.new_ones(rows, sum(part.shape[1] for part in pictures))
        mask_BL = torch.cat(
            [seen_BL, words.mask_BL, words.mask_BL.new_ones(rows, len(shown))], dim=1
        )
        return Prefix(torch.cat([part.to(dtype) for part in parts], dim=1), mask_BL, len(shown))

    def picture_embeddings(self, picture_BHWC: Tensor) -> Tensor:
        """(B, picture_tokens, W) of uint8 RGB pictures, by a model that sees."""
        assert self.vision is not None
        assert self.connector is not None
        pixel_BCHW = picture_BHWC.movedim(-1, 1).float() / 255.0
        pixel_BCHW = padded_picture(pixel_BCHW, self.picture_size)
        mean_C, std_C = (
            pixel_BCHW.new_tensor(part) for part in (self.source.mean, self.source.std)
        )
        pixel_BCHW = (pixel_BCHW - mean_C[:, None, None]) / std_C[:, None, None]
        return self.connector(self.vision(pixel_BCHW).last_hidden_state)

    def tokens(self, instructions: Sequence[str]) -> Words:
        """Every instruction ends with a newline; padded to the longest.

        Raises:
            HandoffError: an instruction is too long.
        """
        lines = [text if text.endswith("\n") else f"{text}\n" for text in instructions]
        numbers = {line: self.source.tokenizer.encode(line).ids for line in set(lines)}
        longest = max(numbers, key=lambda line: len(numbers[line]))
        length = len(numbers[longest])
        if length > self.instruction_tokens:
            raise HandoffError(
                f"backbone: instruction {longest.strip()[:60]!r} has {length} tokens, at most "
                f"{self.instruction_tokens} are read. Raise backbone.instruction_tokens."
            )
        device = self.text.embed_tokens.weight.device
        token_UL = torch.zeros(len(numbers), length, dtype=torch.long)
        mask_UL = torch.zeros(len(numbers), length, dtype=torch.bool)
        for row, ids in enumerate(numbers.values()):
            token_UL[row, : len(ids)] = torch.tensor(ids)
            mask_UL[row, : len(ids)] = True
        place = {line: row for row, line in enumerate(numbers)}
        row_B = torch.tensor([place[line] for line in lines])
        return Words(token_UL[row_B].to(device), mask_UL[row_B].to(device))

    def forward_prefix(self, prefix: Prefix) -> KeyValues:
        """Keys and values of every text layer; worked out once, they serve every step of a sampler.

        Where the backbone is frozen, only the state tokens keep what their gradient needs: nothing
        that is trained stands before them, and nothing before them attends to them.
        """
        allowed_BLL, position_BL = prefix_mask(prefix), positions(prefix.mask_BL)
        split = prefix.embedding_BLW.shape[1] - prefix.state_tokens
        if not (self.frozen() and prefix.embedding_BLW.requires_grad and prefix.state_tokens):
            return self.forward_text(prefix.embedding_BLW, allowed_BLL, position_BL)[1]
        words_BLW = prefix.embedding_BLW[:, :split].detach()
        past = self.forward_text(words_BLW, allowed_BLL[:, :split, :split], position_BL[:, :split])[
            1
        ]
        state_BLW = prefix.embedding_BLW[:, split:]
        return self.forward_text(state_BLW, allowed_BLL[:, split:], position_BL[:, split:], past)[1]

    def frozen(self) -> bool:
        """Whether nothing but the projection of the state is trained."""
        pretrained = [part for part in (self.text, self.vision, self.connector) if part is not None]
        return not any(
            parameter.requires_grad for part in pretrained for parameter in part.parameters()
        )

    def forward_text(
        self, embedding_BSW: Tensor, allowed_BSK: Tensor, position_BS: Tensor, past: KeyValues = ()
    ) -> tuple[Tensor, KeyValues]:
        """The text layers and their last norm: hidden states (B, S, W), and all keys and values,
        `past` first.

        Args:
            embedding_BSW: new tokens.
            allowed_BSK: True where a new token attends to a key, those of `past` first.
            position_BS: of the new tokens.
            past: keys and values of tokens before.
        """
        from transformers import DynamicCache

        cache = DynamicCache()
        for number, (key_BNKD, value_BNKD) in enumerate(past):
            cache.update(key_BNKD, value_BNKD, number)
        answer = self.text(
            inputs_embeds=embedding_BSW,
            attention_mask=allowed_BSK[:, None],
            position_ids=position_BS,
            past_key_values=cache,
            use_cache=True,
        )
        layers = cache.layers[: self.layers]
        return answer.last_hidden_state, tuple((layer.keys, layer.values) for layer in layers)  # type: ignore[misc]

    def rotary(
        self, position_BS: Tensor, dtype: torch.dtype = torch.float32
    ) -> tuple[Tensor, Tensor]:
        """Cosine and sine (B, S, D) by which queries and keys at these positions are rotated, see
        `rotated`."""
        like = torch.empty(0, dtype=dtype, device=position_BS.device)
        return self.text.rotary_emb(like, position_ids=position_BS)

    def logits(self, hidden_BSW: Tensor) -> Tensor:
        """The language head's answer (B, S, V); by the embedding's weights where the two are tied.

        Raises:
            HandoffError: the head is not tied, and was not kept.
        """
        if self.head is None and not self.tied:
            raise HandoffError("backbone: its language head was not kept when it was loaded.")
        return (
            self.head(hidden_BSW)
            if self.head is not None
            else linear(hidden_BSW, self.text.embed_tokens.weight)
        )

    def files(self) -> dict[str, bytes]:
        """By name, the small files with which the same structure is built again without weights."""
        return dict(self.source.files)


def _state_projection(size: int, width: int, tokens: int) -> nn.Module:
    """To one token: SmolVLA's linear map of the whole state; of several tokens each has OFT's two
    layers (arXiv
    2502.19645), as few entries beside a bias would else be all that the first norm leaves of
    them."""
    if tokens == 1:
        return nn.Linear(size, width)
    return nn.Sequential(nn.Linear(size, width), nn.GELU(), nn.Linear(width, width))


def prefix_mask(prefix: Prefix) -> Tensor:
    """(B, L, L) True where the token of a row attends to that of a column."""
    length = prefix.mask_BL.shape[1]
    is_state_L = torch.arange(length, device=prefix.mask_BL.device) >= length - prefix.state_tokens
    return prefix.mask_BL[:, None, :] & (is_state_L[:, None] | ~is_state_L[None, :])


def positions(mask_BL: Tensor) -> Tensor:
    """Positions (B, L) of the tokens; padding does not count, so it moves no token that follows
    it."""
    return (mask_BL.long().cumsum(dim=1) - 1).clamp(min=0)


def rotated(heads_BNSD: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Queries or keys, turned by their positions as the text layers do (rotary embedding, Su et al.
    2021)."""
    cosine_BSD, sine_BSD = rotary
    first, second = heads_BNSD.chunk(2, dim=-1)
    return (
        heads_BNSD * cosine_BSD[:, None] + torch.cat((-second, first), dim=-1) * sine_BSD[:, None]
    )


def padded_picture(pixel_BCHW: Tensor, size: int) -> Tensor:
    """Pictures of 0 to 1 as squares: scaled by their longer side, black at the left and top."""
    height, width = pixel_BCHW.shape[-2:]
    scale = size / max(height, width)
    inner = max(1, int(height * scale + 1e-6)), max(1, int(width * scale + 1e-6))
    if inner != (height, width):
        pixel_BCHW = interpolate(pixel_BCHW, inner, mode="bilinear", align_corners=False)
    return pad(pixel_BCHW, (size - inner[1], 0, size - inner[0], 0))


def load_backbone(
    config: BackboneConfig,
    weights: bool,
    state: Sequence[int] = (),
    head: bool = False,
    sees: bool = True,
    shared: bool = False,
) -> VisionLanguageModel:
    """The model in the local folder `config.folder`, or one from scratch; in float32 on the CPU.

    Args:
        config: which.
        weights: False leaves them random, for a policy whose own file holds them all; so are those
            from scratch.
        state: entries of every state token; none where there is no state.
        head: whether to keep the language head, for `VisionLanguageModel.logits`.
        sees: whether to keep the vision tower.
        shared: see `VisionLanguageModel`.

    Raises:
        HandoffError: no such folder, another family, more layers than there are, or files missing
            or damaged.
    """
    from safetensors import SafetensorError
    from transformers import AutoModelForImageTextToText

    source = read_source(config)
    if not weights or config.folder is None:
        model = AutoModelForImageTextToText.from_config(
            source.config, dtype=torch.float32, attn_implementation="sdpa", trust_remote_code=False
        )
        return VisionLanguageModel(source, model, config, state, head, sees, shared)
    folder = Path(config.folder)
    try:
        with _quietly():
            loaded: Any = AutoModelForImageTextToText.from_pretrained(
                folder,
                config=source.config,
                dtype=torch.float32,
                attn_implementation="sdpa",
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:300]
        raise HandoffError(
            f"{folder}: the backbone's weights cannot be read ({reason}). Was it copied whole?"
        ) from None
    model, report = loaded
    unread = set() if head else {"lm_head.weight"}
    wrong = sorted(map(str, {*report["missing_keys"], *report["mismatched_keys"]} - unread))
    if wrong:
        raise HandoffError(
            f"{folder}: {len(wrong)} weights are missing or of another size, the first is {wrong[0]}."
        )
    return VisionLanguageModel(source, model, config, state, head, sees, shared)


@contextmanager
def _quietly() -> Iterator[None]:
    """Keeps transformers from drawing a progress bar beside the caller's, and from listing the
    layers left out."""
    from transformers.utils import logging

    shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()
