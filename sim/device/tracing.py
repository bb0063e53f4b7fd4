"""Functions of NumPy arrays as functions of tensors on one device, by what torch.compile makes of
them.

torch.compile traces NumPy (`torch.compiler.wrap_numpy`), but not for another device than the
host's: arrays that are made within, such as `np.zeros`, would lie there, and under
`with torch.device` torch 2.13 cannot trace operators. So a function is traced on the host once, by
an example; what came of it, a graph of torch's own operators, is then laid out for the device, with
all arrays that the function knows, and run by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from robots.errors import HandoffError


class Traced:
    """A function of arrays, for tensors of the example's shapes and types; see `on`.

    Args:
        function: of NumPy arrays, to arrays in lists, tuples and dicts; no branch and no size
            depends on a value.
        example: arguments, on the host.

    Raises:
        HandoffError: an answer that is not an array of its own.
    """

    def __init__(self, function: Callable[..., Any], example: Sequence[Tensor]) -> None:
        self._example = example
        # What the function knows beside its arguments: one of either for every input of the graph.
        self._graph, self._known, self._places, self._spec, self._order = _traced(function, example)

    def on(self, device: torch.device, optimised: bool = False) -> Callable[..., Any]:
        """The function of tensors on `device`, which answers there.

        Args:
            device: of arguments and answers.
            optimised: whether torch's inductor makes kernels of it, which takes a compiler.
        """
        known = [None if one is None else one.to(device) for one in self._known]

        def flat(*arguments: Tensor) -> list[Tensor]:
            inputs = zip(self._places, known, strict=True)
            found = self._graph(
                *[arguments[place] if one is None else one for place, one in inputs]
            )
            return [found[number] for number in self._order]

        with torch.device(device):
            laid = make_fx(flat)(*[one.to(device) for one in self._example])
        laid.graph.eliminate_dead_code()
        laid.recompile()
        run = torch.compile(laid, dynamic=False) if optimised else laid
        return lambda *arguments: pytree.tree_unflatten(list(run(*arguments)), self._spec)


def _traced(
    function: Callable[..., Any], example: Sequence[Tensor]
) -> tuple[Any, list[Tensor | None], list[int], Any, list[int]]:
    """The graph; per input what is known of it, or which argument it is; the form of the answer
    and, for each of its leaves, which output of the graph it is."""
    caught: list[tuple[Any, Sequence[Tensor], Sequence[Tensor]]] = []

    def keep(graph: Any, _: Sequence[Tensor]) -> Callable[..., Any]:
        def run(*inputs: Tensor) -> Any:
            caught.append((graph, inputs, graph(*inputs)))
            return caught[-1][2]

        return run

    wrapped = torch.compiler.wrap_numpy(function)
    # All wrapped functions count as one, of which torch keeps eight.
    with torch._dynamo.config.patch(recompile_limit=1000):
        answer = torch.compile(wrapped, backend=keep, fullgraph=True, dynamic=False)(*example)
    graph, inputs, outputs = caught[-1]
    leaves, spec = pytree.tree_flatten(answer)
    places = [_place(one, example) for one in inputs]
    order = [_place(one, outputs) for one in leaves]
    if -1 in order:
        raise HandoffError(
            f"traced: part {order.index(-1)} of what the function answers is no array of its own. Copy it."
        )
    known = [
        one.detach().clone() if place < 0 else None
        for one, place in zip(inputs, places, strict=True)
    ]
    return graph, known, places, spec, order


def _place(one: Tensor, among: Sequence[Tensor]) -> int:
    """Number of the tensor of the same memory, shape and type; -1 where there is none."""
    for number, other in enumerate(among):
        alike = (one.data_ptr(), one.shape, one.dtype) == (
            other.data_ptr(),
            other.shape,
            other.dtype,
        )
        if alike and one.stride() == other.stride():
            return number
    return -1
