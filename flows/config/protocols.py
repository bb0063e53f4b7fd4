"""Protocol files: read by path, or by name from `configs/protocol/`."""

from __future__ import annotations

import difflib
from pathlib import Path

from robots.config import validate
from robots.errors import HandoffError
from sim.evaluation.protocol import Protocol


def read_protocol(name: str) -> Protocol:
    """Reads a protocol.

    Args:
        name: of a file in `configs/protocol/`, without its ending, or the path of a YAML file.

    Raises:
        HandoffError: no such file, not YAML, a misspelt key, or a protocol that cannot be run here.
    """
    import yaml

    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        path = _folder() / f"{name}.yaml"
    if not path.is_file():
        known = available()
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean '{close[0]}'?" if close else f"known: {', '.join(known)}."
        raise HandoffError(f"protocol {path} does not exist; {hint}")
    try:
        values = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise HandoffError(f"protocol {path}: not YAML ({' '.join(str(error).split())}).") from None
    if not isinstance(values, dict):
        raise HandoffError(
            f"protocol {path}: holds {type(values).__name__}, expected keys and values."
        )
    return validate(Protocol, values, path.name)


def available() -> list[str]:
    """Names of the protocols in `configs/protocol/`."""
    return sorted(file.stem for file in _folder().glob("*.yaml"))


def push_t_published() -> Protocol:
    """The published push-T protocol."""
    return read_protocol("push_t_published")


def _folder() -> Path:
    import configs

    return Path(configs.__path__[0]) / "protocol"
