"""Imports what packages outside Handoff provide, by dotted path."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

from robots.errors import HandoffError


def import_outside(module: str, about: str) -> ModuleType:
    """Imports a module of an installed package or of the working directory.

    Args:
        module: dotted name of the module.
        about: beginning of the error: who names the module.

    Raises:
        HandoffError: there is no such module.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        if module != missing and not module.startswith(missing + "."):
            raise
        raise HandoffError(
            f"{about}: there is no module {missing}. It must be installed, or lie in the working "
            f"directory {here}."
        ) from None
