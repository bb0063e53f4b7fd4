"""Exports the graph of a language-conditioned policy, whose instructions are inputs as tokens of
`robots.language.tokenizer`.

These policies are exported in torch's strict mode, which analyses the Python code; the non-strict
mode of other policies would make the batch size of the example a constant.

Shape suffixes: B batch, T observed steps, O observation, H horizon, A action, L tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from policies.families.vision_language import VisionLanguagePolicy
from policies.language.sentence_encoder import SentenceEncoder
from policies.policy import ChunkPolicy, InstructionTokens
from robots.errors import HandoffError
from robots.language.tokenizer import TOKENIZER_FILE, TokenizerSpec, tokenizer_digest

LARGEST_GRAPH = 2**31
"""Maximum size of an ONNX file [bytes], the limit of protocol buffers."""
_EXAMPLE_TOKENS = 5
"""Tokens of the example input; a length of 1 would become a constant of the graph."""


class SentenceGraph(nn.Module):
    """A policy with a sentence encoder as a function of tokens instead of sentences; the encoder is
    part of the graph."""

    def __init__(self, policy: ChunkPolicy, sentences: SentenceEncoder) -> None:
        super().__init__()
        self.policy = policy
        self.encoder = sentences.model

    def forward(
        self,
        observation_BTO: Tensor,
        noise_BHA: Tensor,
        tokens_BL: Tensor,
        mask_BL: Tensor,
        sensors: Mapping[str, Tensor] | None = None,
        prefix_BPE: Tensor | None = None,
    ) -> Tensor:
        """Actions (B, H, A); see `ChunkPolicy.forward`."""
        embedding_BW = self.encoder(tokens_BL, mask_BL)
        return self.policy(
            observation_BTO,
            noise_BHA,
            sensors,
            embedding_BW=embedding_BW,
            prefix_BPE=prefix_BPE,
        )


class TokenGraph(nn.Module):
    """A policy with a vision-language backbone as a function of tokens instead of sentences."""

    def __init__(self, policy: VisionLanguagePolicy) -> None:
        super().__init__()
        self.policy = policy

    def forward(
        self,
        observation_BTO: Tensor,
        noise_BHA: Tensor,
        tokens_BL: Tensor,
        mask_BL: Tensor,
        sensors: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """Actions (B, H, A); see `ChunkPolicy.forward`."""
        tokens = InstructionTokens(tokens_BL, mask_BL)
        self.policy.instruction_tokens = lambda obs: tokens  # type: ignore[method-assign]
        try:
            return self.policy(observation_BTO, noise_BHA, sensors)
        finally:
            del self.policy.instruction_tokens


def export_program(
    policy: ChunkPolicy,
    example: tuple[Tensor, ...],
    keywords: dict[str, Any],
    dynamic: dict[str, Any],
) -> tuple[torch.export.ExportedProgram, dict[str, Any]]:
    """The captured computation of the policy, and the dynamic axes of its inputs.

    Args:
        policy: language-conditioned policy in evaluation mode.
        example: observation and noise.
        keywords: keyword inputs: `sensors` and `prefix_BPE`, where there are any.
        dynamic: dynamic axes of `example` and `keywords`.

    Raises:
        HandoffError: weights that are too large for one file.
    """
    graph = _token_graph(policy)
    size = sum(parameter.numel() * parameter.element_size() for parameter in graph.parameters())
    if size >= LARGEST_GRAPH:
        raise HandoffError(
            f"export: the weights have {size / 2**30:.1f} GiB, one ONNX file holds less than 2. Serve the policy from "
            "its directory instead, or keep fewer of the backbone's layers."
        )
    length = torch.export.Dim("words", min=1, max=tokenizer_spec(policy)[0].max_tokens)
    shape = (len(example[0]), _EXAMPLE_TOKENS)
    tokens = (torch.zeros(shape, dtype=torch.long), torch.ones(shape, dtype=torch.bool))
    batch = dynamic["observation_BTO"][0]
    axes = {**dynamic, "tokens_BL": {0: batch, 1: length}, "mask_BL": {0: batch, 1: length}}
    program = torch.export.export(
        graph, (*example, *tokens), keywords, dynamic_shapes=axes, strict=True
    )
    return program, axes


def _token_graph(policy: ChunkPolicy) -> SentenceGraph | TokenGraph:
    if policy.sentences is not None:
        return SentenceGraph(policy, policy.sentences)
    return TokenGraph(_with_backbone(policy))


def _with_backbone(policy: ChunkPolicy) -> VisionLanguagePolicy:
    if isinstance(policy, VisionLanguagePolicy):
        return policy
    raise HandoffError(
        f"export: {type(policy).__name__} is language-conditioned, but has neither a sentence encoder nor a "
        "vision-language backbone, so its instructions have no tokens."
    )


def custom_translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Translations of operators that ONNX Runtime does not support.

    The normal distribution function, which samples tokens from noise, uses ONNX Runtime's error
    function, which has single precision only: probabilities differ by up to 6e-8.
    """
    from onnx import TensorProto
    from onnxscript import opset18

    op: Any = opset18  # the stubs have types for scripts, not for traces

    def ndtr(values: Any) -> Any:
        half, root = (op.Constant(value_float=value) for value in (0.5, 0.5**0.5))
        error = op.Erf(op.Mul(op.Cast(values, to=TensorProto.FLOAT), root))
        return op.CastLike(op.Add(op.Mul(error, half), half), values)

    return {torch.ops.aten.special_ndtr.default: ndtr}


def tokenizer_spec(policy: ChunkPolicy) -> tuple[TokenizerSpec, bytes]:
    """Tokenizer metadata of the graph, and the content of the tokenizer file.

    Raises:
        HandoffError: a policy without tokens.
    """
    if policy.sentences is not None:
        spec = replace(
            policy.sentences.tokenizer.spec, default_instruction=policy.default_instruction
        )
        return spec, policy.sentences.files[TOKENIZER_FILE]
    backbone = _with_backbone(policy).backbone
    data = backbone.files()[TOKENIZER_FILE]
    return TokenizerSpec(
        tokenizer=tokenizer_digest(data),
        max_tokens=backbone.instruction_tokens,
        default_instruction=policy.default_instruction,
    ), data
