"""From a file of a group in `configs/`, such as `hil/pick_cube`, and overrides to plain values."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from robots.errors import HandoffError


def composed(
    group: str, name: str, defaults: Mapping[str, Any], overrides: Sequence[str] = ()
) -> dict[str, Any]:
    """Composes `configs/<group>/<name>.yaml` over `<group>_defaults`, which live in the
    configuration classes.

    Args:
        group: a folder of `configs/`.
        name: a file in it, without its ending.
        defaults: plain values.
        overrides: Hydra overrides, e.g. `train.sac.critics=10`.

    Raises:
        HandoffError: no such file, or an override of an unknown key.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_module
    from hydra.core.config_store import ConfigStore
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    known = available_in(group)
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean '{close[0]}'?" if close else f"there are {', '.join(known)}."
        raise HandoffError(f"configs/{group}/{name}.yaml does not exist, {hint}")
    ConfigStore.instance().store(name=f"{group}_defaults", node=dict(defaults))
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module("configs", version_base="1.3"):
            found = hydra_compose(f"{group}/{name}", overrides=list(overrides))
        values = OmegaConf.to_container(found, resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        reason = str(error).splitlines()[0]
        raise HandoffError(
            f"configs/{group}/{name}.yaml with {list(overrides)}: {reason}"
        ) from None
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def available_in(group: str) -> list[str]:
    """Names of the files in `configs/<group>/`."""
    import configs

    return sorted(file.stem for file in (Path(configs.__path__[0]) / group).glob("*.yaml"))
