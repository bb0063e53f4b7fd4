"""Translates a policy to an ONNX graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from robots.contract import PREFIX_INPUT
from robots.errors import HandoffError
from robots.language.tokenizer import TOKEN_INPUTS

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir
    import torch
    from torch import nn

    from policies.policy import ChunkPolicy

INPUTS = ("observation", "noise")
"""Inputs of every graph; language-conditioned policies have
`robots.language.tokenizer.TOKEN_INPUTS` next, and one per camera and point cloud follows, named by
its field."""


def to_onnx(module: ChunkPolicy, opset: int) -> onnx.ModelProto:
    """The policy as one graph with output `action` and a dynamic batch.

    Inputs are `observation` (batch, T, O), `noise` (batch, H, A), for a language-conditioned policy
    `tokens` and `tokens_mask` (batch, words) int64 and bool, and per camera and point cloud the
    name of its field: (batch, T, height, width, 3) uint8 or (batch, T, points, entries) float32.
    A policy that takes decided actions has `prefix` (batch, P, A + 1) last.

    Raises:
        HandoffError: a camera or point cloud has the name of another tensor of the graph, weights
            that are too large for a file, or a graph that takes batches of one size only.
    """
    import torch
    from onnx import helper

    from policies.networks.images.onnx_function import quiet_translation

    # Check the names of the inputs.
    batch = torch.export.Dim("batch", min=1)
    sensors = module.shapes.sensors
    inputs = [*INPUTS, *(TOKEN_INPUTS if module.language_conditioned else ())]
    most = module.config.most_decided
    last = [PREFIX_INPUT] if most else []
    taken = [*inputs, *last, "action"]
    if sensors.keys() & {*taken}:
        raise HandoffError(f"export: sensors {sorted(sensors)} must not have the names {taken}.")
    # Example inputs and dynamic axes.
    steps = module.observation_shape[0]
    keywords: dict[str, Any] = {}
    example = tuple(
        torch.zeros(2, *shape) for shape in (module.observation_shape, module.chunk_shape)
    )
    dynamic: dict[str, Any] = {"observation_BTO": {0: batch}, "noise_BHA": {0: batch}}
    if sensors:
        # Images have three axes, point clouds two.
        kinds = {
            name: torch.uint8 if len(shape) == 3 else torch.float32
            for name, shape in sensors.items()
        }
        keywords["sensors"] = {
            name: torch.zeros(2, steps, *shape, dtype=kinds[name])
            for name, shape in sensors.items()
        }
        dynamic["sensors"] = {name: {0: batch} for name in sensors}
    if most:
        keywords["prefix_BPE"] = torch.zeros(2, most, module.chunk_shape[1] + 1)
        dynamic["prefix_BPE"] = {0: batch}
    # Capture and translate the computation.
    with quiet_translation():
        captured = _captured(module, example, keywords, dynamic)
        translated = torch.onnx.export(
            captured.program,
            (),
            dynamo=True,
            input_names=[*inputs, *sensors, *last],
            output_names=["action"],
            opset_version=opset,
            verbose=False,
            optimize=False,
            # For their names; the program has them already.
            dynamic_shapes=captured.axes,
            custom_translation_table=captured.translations,
        )
        assert translated is not None
        _simplify(translated.model)
    model = translated.model_proto
    _check_batch(model)
    # torch writes a newer version of the format than the operators need; old readers refuse it.
    model.ir_version = helper.find_min_ir_version_for(model.opset_import)
    return model


class _Captured(NamedTuple):
    """A policy's computation on tensors of any batch."""

    program: torch.export.ExportedProgram
    axes: dict[str, Any]
    """Dynamic axes of its inputs."""
    translations: dict[Callable[..., Any], Callable[..., Any]]
    """Translations of operators that ONNX lacks."""


def _captured(
    module: ChunkPolicy,
    example: tuple[torch.Tensor, ...],
    keywords: dict[str, Any],
    axes: dict[str, Any],
) -> _Captured:
    import torch

    repeated = module.repeated_modules
    with _once(repeated):
        if module.language_conditioned:
            from policies.export.language import custom_translations, export_program

            program, axes = export_program(module, example, keywords, axes)
            return _Captured(program, axes, custom_translations())
        # Only the strict mode, which follows the bytecode, knows parts that are captured once; the
        # other one runs the module with tensors without content, and takes more of Python.
        program = torch.export.export(
            module, example, keywords, dynamic_shapes=axes, strict=bool(repeated)
        )
    return _Captured(program, axes, {})


@contextmanager
def _once(modules: tuple[nn.Module, ...]) -> Iterator[None]:
    """Marks modules that a policy calls once per step of its sampler, so that each is captured
    once: ten steps of a U-Net then take a third of the time."""
    import torch

    def region(module: nn.Module) -> Callable[..., Any]:
        method = module.forward

        @torch.compiler.nested_compile_region
        def forward(*arguments: Any) -> Any:
            return method(*arguments)

        return forward

    for module in modules:
        module.forward = region(module)
    try:
        yield
    finally:
        for module in modules:
            del module.forward


def _simplify(model: ir.Model) -> None:
    """Folds constants, joins operators, and removes what is computed twice or for nothing, in
    place.

    The exporter's own optimisation has one more rule, which joins slices and takes a time that
    grows with the square of the number of operators: most of the export of a long graph.
    """
    from onnx_ir.passes import PassManager, common
    from onnxscript import optimizer
    from onnxscript.rewriter import RewritePass
    from onnxscript.rewriter.rules import common as rules

    joined = RewritePass(
        [
            rules.add_0_rule,
            rules.cast_cast_rule,
            rules.cast_constant_of_shape_rule,
            rules.cast_constant_of_shape_without_value_rule,
            rules.collapse_slice2_rule,
            rules.collapse_slice_rule,
            rules.div_by_1_rule,
            rules.materialize_reshape_shape_rule,
            rules.matmul_add_to_gemm_rule,
            rules.mul_by_1_rule,
            rules.no_op_cast_rule,
            rules.no_op_expand_rule,
            rules.no_op_transpose_rule,
            rules.one_reshape_matmul_reshape_rule,
            rules.reshape_reshape_rule,
            rules.squeeze_reshape_1d_rule,
            rules.sub_0_rule,
            rules.transpose_a_matmul_add_to_gemm_rule,
            rules.transpose_ab_matmul_add_to_gemm_rule,
            rules.transpose_b_matmul_add_to_gemm_rule,
            rules.transpose_transpose_rule,
            rules.two_reshapes_matmul_reshape_rule,
            rules.unsqueeze_unsqueeze_rule,
        ]
    )
    common.InlinePass()(model)
    for _ in range(2):
        optimizer.fold_constants(model, onnx_shape_inference=True)
        joined(model)
        common.RemoveUnusedNodesPass()(model)
    PassManager(
        [
            common.RemoveUnusedFunctionsPass(),
            common.RemoveUnusedOpsetsPass(),
            common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
            common.DeduplicateInitializersPass(size_limit=1 << 31),
            common.CommonSubexpressionEliminationPass(),
            # Stack traces of the exporter, with paths of this computer.
            common.ClearMetadataAndDocStringPass(),
            common.OutputFixPass(),
            common.NameFixPass(),
        ]
    )(model)


def _check_batch(model: onnx.ModelProto) -> None:
    """Refuses a graph that takes batches of one size only."""
    for entry in model.graph.input:
        size = entry.type.tensor_type.shape.dim[0]
        if size.HasField("dim_value"):
            raise HandoffError(
                f"export: the graph accepts only batches of {size.dim_value} at its input '{entry.name}', expected "
                "any size. Does the policy's code use the size of a batch as a number?"
            )
