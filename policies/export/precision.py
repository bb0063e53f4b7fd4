"""Converts an exported graph to half precision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from robots.errors import HandoffError

if TYPE_CHECKING:
    import onnx

LARGEST = 65504.0
"""Largest finite number in half precision."""


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
