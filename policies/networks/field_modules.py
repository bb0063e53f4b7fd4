"""Holds one module per observation field, by the field's name."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView

from torch import nn


class FieldModules(nn.ModuleDict):
    """A `ModuleDict` whose keys are names of fields, which may contain dots, such as
    `observation.images.front`.

    Torch separates the parts of a parameter's name by dots, so those of a key are stored as `%2E`,
    and a percent sign as `%25`.
    """

    def __getitem__(self, key: str) -> nn.Module:
        """The module of the field `key`."""
        return super().__getitem__(_encoded(key))

    def __setitem__(self, key: str, module: nn.Module) -> None:
        """Sets the module of the field `key`."""
        super().__setitem__(_encoded(key), module)

    def __contains__(self, key: object) -> bool:
        """Whether the field `key` has a module."""
        return isinstance(key, str) and super().__contains__(_encoded(key))

    def __iter__(self) -> Iterator[str]:
        """Names of the fields."""
        return iter(self.keys())

    def keys(self) -> KeysView[str]:
        """Names of the fields."""
        return dict(self.items()).keys()

    def items(self) -> ItemsView[str, nn.Module]:
        """Names of the fields with their modules."""
        return {_decoded(key): module for key, module in super().items()}.items()


def _encoded(name: str) -> str:
    return name.replace("%", "%25").replace(".", "%2E")


def _decoded(key: str) -> str:
    return key.replace("%2E", ".").replace("%25", "%")
