"""Runs a frozen network with ONNX Runtime, which is several times as fast as torch on a CPU."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def onnx_function(module: nn.Module, example: Tensor) -> Callable[[Tensor], Tensor]:
    """The network as a function of tensors on the CPU, in one thread.

    Args:
        module: network in evaluation mode, of one tensor whose first axis is the batch.
        example: input with a batch of at least two.
    """
    import onnxruntime

    with quiet_translation():
        program = torch.onnx.export(
            module.cpu(),
            (example,),
            dynamo=True,
            dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
            verbose=False,
        )
    assert program is not None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        program.model_proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    name = session.get_inputs()[0].name

    def run(inputs: Tensor) -> Tensor:
        (output,) = session.run(None, {name: inputs.contiguous().numpy()})
        return torch.from_numpy(output)

    return run


@contextmanager
def quiet_translation() -> Iterator[None]:
    """Silences torch's warnings about deprecations, inputs with a common batch axis, and the
    missing torchvision, which is not needed; and the optimiser's about splits of constants, such as
    ACT's projections of learned queries, which are computed when the graph runs."""
    import warnings

    exporter = logging.getLogger("torch.onnx._internal.exporter._registration")
    optimizer = logging.getLogger("onnxscript.optimizer._constant_folding")
    level = exporter.level
    exporter.setLevel(logging.ERROR)
    optimizer.addFilter(_is_news)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        exporter.setLevel(level)
        optimizer.removeFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    return record.msg != "Skipping constant folding for op %s with multiple outputs."
