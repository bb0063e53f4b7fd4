"""The graph of a policy that reads: its sentences are inputs too, as the tokens that
`robots.language.tokenizer` makes of them.

Such a policy is captured by following its Python code, where those of arrays are captured by
running it: the latter would take the batch of the example for the only one.

Shape suffixes: B batch, T observed steps, O observation, H horizon, A action, L tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from policies.families.vision_language import VisionLanguagePolicy
from policies.policy import Words
from robots.errors import HandoffError
from robots.language.tokenizer import TOKENIZER, TokenizerSpec, tokenizer_digest

LARGEST_GRAPH = 2**31
"""Bytes that one ONNX file may have: those of a protocol buffer."""
_EXAMPLE_WORDS = 5
"""Tokens of the example; a length of 1 would be taken for the only one."""


class TokenGraph(nn.Module):
    """A policy that reads, as a function of tokens in the place of sentences."""

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
        told = Words(tokens_BL, mask_BL)
        self.policy.words = lambda observed: told  # type: ignore[method-assign]
        try:
            return self.policy(observation_BTO, noise_BHA, sensors)
        finally:
            del self.policy.words


def captured(
    policy: VisionLanguagePolicy,
    example: tuple[Tensor, ...],
    shown: dict[str, Any],
    dynamic: dict[str, Any],
) -> tuple[torch.export.ExportedProgram, dict[str, Any]]:
    """The policy's operations, and which axes of its inputs vary.

    Args:
        policy: at inference.
        example: observation and noise.
        shown: `sensors`, where there are any.
        dynamic: the axes that vary in `example` and `shown`.

    Raises:
        HandoffError: weights that are too large for one file.
    """
    size = sum(parameter.numel() * parameter.element_size() for parameter in policy.parameters())
    if size >= LARGEST_GRAPH:
        raise HandoffError(
            f"export: the weights have {size / 2**30:.1f} GiB, one ONNX file holds less than 2. Serve the policy from "
            "its directory instead, or keep fewer of the backbone's layers."
        )
    words = torch.export.Dim("words", min=1)
    shape = (len(example[0]), _EXAMPLE_WORDS)
    told = (torch.zeros(shape, dtype=torch.long), torch.ones(shape, dtype=torch.bool))
    batch = dynamic["observation_BTO"][0]
    axes = {**dynamic, "tokens_BL": {0: batch, 1: words}, "mask_BL": {0: batch, 1: words}}
    program = torch.export.export(
        TokenGraph(policy), (*example, *told), shown, dynamic_shapes=axes, strict=True
    )
    return program, axes


def translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """What ONNX Runtime lacks, by what it has.

    Of the error function, by which noise draws tokens, it has single precision alone: 6e-8 off in a
    probability.
    """
    from onnx import TensorProto
    from onnxscript import opset18

    op: Any = opset18  # its stubs have types for scripts, not for traces

    def ndtr(values: Any) -> Any:
        half, root = (op.Constant(value_float=value) for value in (0.5, 0.5**0.5))
        error = op.Erf(op.Mul(op.Cast(values, to=TensorProto.FLOAT), root))
        return op.CastLike(op.Add(op.Mul(error, half), half), values)

    return {torch.ops.aten.special_ndtr.default: ndtr}


def reading_of(policy: VisionLanguagePolicy) -> tuple[TokenizerSpec, bytes]:
    """What the graph is to say of the policy's words, and the tokenizer that makes them."""
    backbone = policy.backbone
    data = backbone.files()[TOKENIZER]
    return TokenizerSpec(
        tokenizer=tokenizer_digest(data), longest=backbone.instruction_tokens, said=policy.said
    ), data
