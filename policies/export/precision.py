"""Converts an exported graph to half precision, or to integer matrix products."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from robots.contract import Precision
from robots.errors import HandoffError

if TYPE_CHECKING:
    import onnx

_WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gather", "GatherND", "Gemm", "MatMul"})
_TRANSPOSED = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 1}
LARGEST = 65504.0
"""Largest finite number in half precision."""


def with_precision(model: onnx.ModelProto, precision: Precision) -> onnx.ModelProto:
    """The graph, which has float32, in another precision.

    Raises:
        HandoffError: a weight that half precision cannot represent.
    """
    if precision == "float16":
        return to_float16(model)
    return to_int8(model) if precision == "int8" else model


def to_float16(model: onnx.ModelProto) -> onnx.ModelProto:
    """The graph with weights and computations in half precision.

    What comes before the first layer with weights and after the last one stays float32: inputs,
    outputs and the normalisers. Half precision has a resolution of 0.24 mm at 0.5 m, and positions
    in such a grid cost more than all rounding behind it.

    Raises:
        HandoffError: a weight that half precision cannot represent.
    """
    import numpy as np
    from onnx import numpy_helper
    from onnxruntime.transformers.float16 import convert_float_to_float16

    parts = _split(model)
    for tensor in parts.inner.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype == np.float32 and values.size and np.abs(values).max() > LARGEST:
            raise HandoffError(
                f"export: weight '{tensor.name}' has a value of {np.abs(values).max():.3g}, the largest in float16 is "
                f"{LARGEST:.0f}. Export with precision: float32."
            )
    inner = convert_float_to_float16(parts.inner, keep_io_types=True)
    return _joined(model, parts, inner.graph)


class _Parts(NamedTuple):
    """A graph around its layers with weights."""

    before: list[onnx.NodeProto]
    """Nodes that no layer precedes."""
    inner: onnx.ModelProto
    after: list[onnx.NodeProto]
    """Nodes that a layer precedes and none follows."""


def _split(model: onnx.ModelProto) -> _Parts:
    from onnx import helper, shape_inference

    graph = model.graph
    weights = {tensor.name for tensor in graph.initializer if len(tensor.dims) > 1}

    def is_layer(node: onnx.NodeProto) -> bool:
        return node.op_type in _WEIGHTED and not weights.isdisjoint(node.input)

    before = list(_before_layers(graph.node, is_layer, forward=True))
    early = {node.name for node in before}
    late = [
        node
        for node in _before_layers(reversed(graph.node), is_layer, forward=False)
        if node.name not in early
    ]
    outer = early | {node.name for node in late}
    nodes = [node for node in graph.node if node.name not in outer]
    # Tensors that go in and out.
    made = {name for node in nodes for name in node.output}
    constants = {tensor.name: tensor for tensor in graph.initializer}
    used = {name for node in nodes for name in node.input if name}
    needed = {name for node in late for name in node.input} | {each.name for each in graph.output}
    inferred = shape_inference.infer_shapes(model, strict_mode=False).graph
    types = {each.name: each for each in (*inferred.value_info, *graph.input, *graph.output)}
    inner = helper.make_graph(
        nodes,
        "inner",
        [types[name] for name in sorted(used - made - constants.keys())],
        [types[name] for name in sorted(made & needed)],
        [constants[name] for name in sorted(used & constants.keys())],
    )
    options = {"opset_imports": list(model.opset_import), "ir_version": model.ir_version}
    return _Parts(before, helper.make_model(inner, **options), late[::-1])


def _joined(model: onnx.ModelProto, parts: _Parts, converted: onnx.GraphProto) -> onnx.ModelProto:
    """The whole graph with another inner part."""
    import onnx

    # A constant may be used in both precisions.
    names = {tensor.name: f"half.{tensor.name}" for tensor in converted.initializer}
    for tensor in converted.initializer:
        tensor.name = names[tensor.name]
    for node in converted.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    outer = (*parts.before, *parts.after)
    used = {name for node in outer for name in node.input}
    joined = onnx.ModelProto()
    joined.CopyFrom(model)
    for field in ("node", "initializer", "value_info"):
        joined.graph.ClearField(field)
    joined.graph.node.extend([*parts.before, *converted.node, *parts.after])
    joined.graph.initializer.extend(each for each in model.graph.initializer if each.name in used)
    joined.graph.initializer.extend(converted.initializer)
    return joined


def _before_layers(
    nodes: Iterable[onnx.NodeProto], is_layer: Callable[[onnx.NodeProto], bool], *, forward: bool
) -> Iterator[onnx.NodeProto]:
    """Yields the nodes, in topological order or against it, that depend on no layer."""
    behind: set[str] = set()
    for node in nodes:
        given, made = (node.input, node.output) if forward else (node.output, node.input)
        if is_layer(node) or not behind.isdisjoint(given):
            behind.update(name for name in made if name)
        else:
            yield node


def to_int8(model: onnx.ModelProto) -> onnx.ModelProto:
    """The graph with dynamically quantised matrix products: weights in 7 of 8 bits with one scale
    per output, activations in 8 bits with a scale that each call computes from its batch.

    A batch is rounded by one scale, so the actions of a row depend on the other rows a little; the
    robot's process, the evaluation and the gate's episodes call with one row. 7 bits, since
    processors without VNNI instructions overflow with 8. Convolutions, normalisers, products with
    a vector and everything else stay float32.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    # Shapes that torch wrote before it folded constants; those that are inferred contradict them.
    del plain.graph.value_info[:]
    _plain_products(plain.graph)
    # The quantiser gives the scale of a vector, such as the positions of a spatial softmax, one
    # dimension too many.
    vectors = {tensor.name for tensor in plain.graph.initializer if len(tensor.dims) < 2}
    products = [node for node in plain.graph.node if node.op_type == "MatMul"]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "int8.onnx"
        quantize_dynamic(
            plain,
            file,
            op_types_to_quantize=["MatMul"],
            nodes_to_exclude=[node.name for node in products if node.input[1] in vectors],
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
        )
        return onnx.load(file)


def _plain_products(graph: onnx.GraphProto) -> None:
    """Replaces products with transposed weights by plain ones, in place: the quantiser transposes
    such weights itself, and once per use where several steps of a sampler share them."""
    import numpy as np
    from onnx import helper, numpy_helper

    constants = {tensor.name: tensor for tensor in graph.initializer}
    transposed: dict[str, str] = {}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        given = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        plain = {"alpha": 1.0, "beta": 1.0, "transA": 0, **given} == _TRANSPOSED
        if node.op_type != "Gemm" or not plain or node.input[1] not in constants:
            nodes.append(node)
            continue
        row, weight, *bias = node.input
        if weight not in transposed:
            transposed[weight] = f"{weight}.transposed"
            values = np.ascontiguousarray(numpy_helper.to_array(constants[weight]).T)
            graph.initializer.append(numpy_helper.from_array(values, transposed[weight]))
        product = f"{node.output[0]}.product" if bias else node.output[0]
        nodes.append(helper.make_node("MatMul", [row, transposed[weight]], [product], node.name))
        if bias:
            nodes.append(helper.make_node("Add", [product, *bias], list(node.output)))
    graph.ClearField("node")
    graph.node.extend(nodes)
    used = {name for node in nodes for name in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    graph.ClearField("initializer")
    graph.initializer.extend(kept)
