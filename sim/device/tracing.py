"""Converts functions of NumPy arrays to functions of tensors on a device by tracing them with
torch.compile.

torch.compile traces NumPy (`torch.compiler.wrap_numpy`), but only for the host: arrays that are
created inside, such as `np.zeros`, would stay there, and torch 2.13 cannot trace operators under
`with torch.device`. Therefore a function is traced on the host once with an example; the resulting
graph of torch operators is then retraced for the device with all its constants, and executed
without the function.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._dynamo.variables.builder import VariableBuilder
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from robots.errors import HandoffError


class Traced:
    """A NumPy function that is traced for tensors of the example's shapes and types; see `on`.

    Args:
        function: takes NumPy arrays and returns arrays in lists, tuples and dicts; no branch and no
            size may depend on a value.
        example: arguments on the host.

    Raises:
        HandoffError: an output that is an alias of another array.
    """

    def __init__(self, function: Callable[..., Any], example: Sequence[Tensor]) -> None:
        self._example = example
        # Every input of the graph is either a constant or an argument.
        self._graph, self._constants, self._arguments, self._spec, self._order = _traced(
            function, example
        )

    def on(self, device: torch.device, optimised: bool = False) -> Callable[..., Any]:
        """Returns the function for tensors on `device`.

        Args:
            device: device of arguments and outputs.
            optimised: whether torch's inductor compiles kernels, which requires a compiler.
        """
        constants = [None if c is None else c.to(device) for c in self._constants]

        def flat(*arguments: Tensor) -> list[Tensor]:
            inputs = [
                arguments[index] if constant is None else constant
                for index, constant in zip(self._arguments, constants, strict=True)
            ]
            outputs = self._graph(*inputs)
            return [outputs[index] for index in self._order]

        with torch.device(device):
            retraced = make_fx(flat)(*[tensor.to(device) for tensor in self._example])
        retraced.graph.eliminate_dead_code()
        retraced.recompile()
        run = torch.compile(retraced, dynamic=False) if optimised else retraced
        return lambda *arguments: pytree.tree_unflatten(list(run(*arguments)), self._spec)


def _traced(
    function: Callable[..., Any], example: Sequence[Tensor]
) -> tuple[Any, list[Tensor | None], list[int], Any, list[int]]:
    """Traces `function`. Returns the graph; per input its constant value, or the index of its
    argument; the structure of the output and, for each of its leaves, the index of the graph's
    output."""
    calls: list[tuple[Any, Sequence[Tensor], Sequence[Tensor]]] = []

    def record(graph: Any, _: Sequence[Tensor]) -> Callable[..., Any]:
        def run(*inputs: Tensor) -> Any:
            calls.append((graph, inputs, graph(*inputs)))
            return calls[-1][2]

        return run

    wrapped = torch.compiler.wrap_numpy(function)
    # All wrapped functions share one code object, of which torch caches only eight compilations.
    with torch._dynamo.config.patch(recompile_limit=1000), _kept_read_only():
        result = torch.compile(wrapped, backend=record, fullgraph=True, dynamic=False)(*example)
    graph, inputs, outputs = calls[-1]
    leaves, spec = pytree.tree_flatten(result)
    arguments = [_index(tensor, example) for tensor in inputs]
    order = [_index(tensor, outputs) for tensor in leaves]
    if -1 in order:
        raise HandoffError(
            f"traced: output {order.index(-1)} of the function is an alias of another array. Copy it."
        )
    constants = [
        tensor.detach().clone() if index < 0 else None
        for tensor, index in zip(inputs, arguments, strict=True)
    ]
    return graph, constants, arguments, spec, order


@contextmanager
def _kept_read_only() -> Iterator[None]:
    """Keeps arrays read-only that torch.compile would make writable and leave so: it meets the
    figures of the robot, which all environments share."""
    # torch looks methods up once per process, in this table; a method of the class comes too late.
    wrappers = VariableBuilder._type_dispatch()
    wrap = wrappers[np.ndarray]

    def kept(self: VariableBuilder, value: Any) -> Any:
        read_only = not value.flags.writeable
        try:
            return wrap(self, value)
        finally:
            if read_only:
                value.flags.writeable = False

    wrappers[np.ndarray] = kept
    try:
        with warnings.catch_warnings():
            # Nothing writes to the tensors of these arrays, which become constants of the graph.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            yield
    finally:
        wrappers[np.ndarray] = wrap


def _index(tensor: Tensor, tensors: Sequence[Tensor]) -> int:
    """Index of the tensor with the same memory, shape and type; -1 if there is none."""
    for index, other in enumerate(tensors):
        same = (tensor.data_ptr(), tensor.shape, tensor.dtype) == (
            other.data_ptr(),
            other.shape,
            other.dtype,
        )
        if same and tensor.stride() == other.stride():
            return index
    return -1
