"""Watches over a device: what leaves it, and what runs there."""

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

LEAVES = (
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::masked_select",
    "aten::is_nonzero",
    "aten::item",
)
"""Operators by which numbers, or sizes that depend on numbers, come to the host."""


class Stays(TorchDispatchMode):
    """Collects operators that copy data from the device; a CPU runs the same operators as a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.left: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.name().split(".")[0] in LEAVES:
            self.left.append(func.name())
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    """Collects the names of all operators of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))
