"""Converts an exported graph to half precision, or to integer matrix products."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from robots.contract import Precision
from robots.errors import HandoffError

if TYPE_CHECKING:
    import onnx

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
    """The graph with weights and computations in half precision; inputs and outputs stay float32.

    Normalisers are part of the graph, so observations and actions have the resolution of half
    precision: 0.24 mm at 0.5 m.

    Raises:
        HandoffError: a weight that half precision cannot represent.
    """
    import numpy as np
    from onnx import numpy_helper
    from onnxruntime.transformers.float16 import convert_float_to_float16

    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype == np.float32 and values.size and np.abs(values).max() > LARGEST:
            raise HandoffError(
                f"export: weight '{tensor.name}' has a value of {np.abs(values).max():.3g}, the largest in float16 is "
                f"{LARGEST:.0f}. Export with precision: float32."
            )
    return convert_float_to_float16(model, keep_io_types=True)


def to_int8(model: onnx.ModelProto) -> onnx.ModelProto:
    """The graph with dynamically quantised matrix products: weights in 7 of 8 bits with one scale
    per output, activations in 8 bits with a scale that each call computes from its batch.

    A batch is rounded by one scale, so the actions of a row depend on the other rows a little; the
    robot's process, the evaluation and the gate's episodes call with one row. 7 bits, since
    processors without VNNI instructions overflow with 8. Convolutions, normalisers and everything
    else stay float32.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    # Shapes that torch wrote before it folded constants; those that are inferred contradict them.
    del plain.graph.value_info[:]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "int8.onnx"
        quantize_dynamic(
            plain,
            file,
            op_types_to_quantize=["MatMul", "Gemm"],
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
        )
        return onnx.load(file)
