"""From a name in `configs/` and command-line overrides to a validated pipeline configuration."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.pipeline import DreamsConfig, PipelineConfig, TaughtStudentConfig
from flows.stages.deploy_task import DeployTaskConfig
from flows.stages.finetune import FinetunePolicyConfig
from flows.stages.reinforce import ReinforcePolicyConfig
from flows.stages.scripted import ScriptedConfig
from policies.policy_config import (
    ActConfig,
    BackboneConfig,
    BehaviourCloningConfig,
    BesoConfig,
    DiffusionPolicyConfig,
    MlpConfig,
    ScratchConfig,
    TokenVlaConfig,
    TransformerConfig,
    UnetConfig,
    VlaConfig,
)
from policies.rl.finetuning.config import (
    BestOfNPracticeConfig,
    DppoPracticeConfig,
    FinetuneConfig,
    RL100PracticeConfig,
    VlaPracticeConfig,
)
from policies.rl.off_policy.fast_td3_config import fast_td3, pql
from policies.rl.on_policy.config import GroupConfig
from robots.config import to_plain, validate
from robots.errors import HandoffError

if TYPE_CHECKING:
    from hydra.core.config_store import ConfigStore

_FAMILY = "pretrain.policy"
"""Where the policy family stands in the whole configuration."""
_NETWORK = "pretrain.policy.network"
"""Where the sizes of its denoiser stand, if it has one."""
_PRACTICE = "finetune"
"""Where the practice stands, if there is one."""
MISSING = "???"
"""What has no default and must be given, in Hydra's words."""


def compose(name: str, overrides: Sequence[str] = ()) -> PipelineConfig:
    """Composes `configs/<name>.yaml` over the defaults that live in the configuration classes.

    Args:
        name: a file in `configs/`, without its ending.
        overrides: Hydra overrides, e.g. `pretrain.training.steps=2000`, or `+policy=unet` for the
            values of `configs/policy/unet.yaml`.

    Raises:
        HandoffError: unknown configuration, unknown key (by its path, with the nearest known one),
            ill-typed value.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_module
    from hydra.core.config_store import ConfigStore
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import ConfigCompositionException, OverrideParseException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    known = available()
    if name not in known:
        raise HandoffError(f"configs/{name}.yaml does not exist{_suggest(name, known)}.")
    defaults = to_plain(PipelineConfig())
    _store(ConfigStore.instance(), defaults)
    GlobalHydra.instance().clear()
    for override in overrides:
        _check_override(override, defaults)
    try:
        with initialize_config_module("configs", version_base="1.3"):
            composed = hydra_compose(name, overrides=list(overrides))
        missing = sorted(OmegaConf.missing_keys(composed))
        values = OmegaConf.to_container(composed, resolve=True)
    except (
        ConfigCompositionException,
        OverrideParseException,
        OmegaConfBaseException,
        ValueError,
    ) as error:
        reason = str(error).splitlines()[0]
        if reason.startswith("Could not override"):
            reason += " Does the key belong to another policy family or network?"
        raise HandoffError(f"configs/{name}.yaml with {list(overrides)}: {reason}") from None
    if missing:
        raise HandoffError(
            f"configs/{name}.yaml with {list(overrides)}: {', '.join(missing)} must be given."
        )
    assert isinstance(values, dict)
    return validate(PipelineConfig, {str(key): value for key, value in values.items()})


def available() -> list[str]:
    """Names of the pipelines in `configs/`."""
    import configs

    return sorted(file.stem for file in Path(configs.__path__[0]).glob("*.yaml"))


def _store(store: ConfigStore, defaults: Mapping[str, Any]) -> None:
    """Hands Hydra the defaults, with families and networks as groups: another `kind` must replace
    the first's keys."""
    pretrain = {key: value for key, value in defaults["pretrain"].items() if key != "policy"}
    chosen = {f"family@{_FAMILY}": defaults["pretrain"]["policy"]["kind"]}
    store.store(
        name="defaults", node={"defaults": [chosen, "_self_"], **defaults, "pretrain": pretrain}
    )
    for family in _families():
        own = {key: value for key, value in family.items() if key != "network"}
        networks = [{"/network@network": family["network"]["kind"]}] if "network" in family else []
        store.store(
            group="family", name=family["kind"], node={"defaults": [*networks, "_self_"], **own}
        )
    for network in _networks():
        store.store(group="network", name=network["kind"], node=network)
    for kind, practice in _practices().items():
        store.store(group=_PRACTICE, name=kind, node=practice)
    for group, choice in _choices().items():
        for name, node in choice.items():
            store.store(group=group, name=name, node=node)


def _families() -> list[dict[str, Any]]:
    backbone = BackboneConfig(folder=MISSING)
    return [
        to_plain(family)
        for family in (
            DiffusionPolicyConfig(),
            BesoConfig(),
            ActConfig(),
            BehaviourCloningConfig(),
            VlaConfig(backbone=backbone),
            TokenVlaConfig(backbone=backbone),
        )
    ]


def _networks() -> list[dict[str, Any]]:
    return [to_plain(network) for network in (MlpConfig(), UnetConfig(), TransformerConfig())]


def _practices() -> dict[str, dict[str, Any]]:
    ways = (
        DppoPracticeConfig(),
        BestOfNPracticeConfig(),
        RL100PracticeConfig(),
        VlaPracticeConfig(),
    )
    return {
        way.kind: to_plain(FinetunePolicyConfig(learning=FinetuneConfig(practice=way)))
        for way in ways
    }


def _choices() -> dict[str, dict[str, dict[str, Any]]]:
    """What a pipeline goes without unless it names one: group, name, values."""
    return {
        "scripted": {"expert": to_plain(ScriptedConfig())},
        "dreams": {"play": to_plain(DreamsConfig())},
        "bench": {"twin": to_plain(DeployTaskConfig())},
        "student": {"taught": to_plain(TaughtStudentConfig())},
        "reinforce": {
            "fast_td3": to_plain(ReinforcePolicyConfig(learning=fast_td3())),
            "pql": to_plain(ReinforcePolicyConfig(worlds=4096, learning=pql())),
        },
    }


def _check_override(override: str, defaults: Mapping[str, Any]) -> None:
    key, equals, _ = override.partition("=")
    if not equals:
        raise HandoffError(
            f"override '{override}' has no '='. Write key=value, e.g. pretrain.training.steps=2000."
        )
    families = [f"{_FAMILY}.{size}" for family in _families() for size in _dotted(family)]
    families += [f"{_FAMILY}.backbone.scratch.{size}" for size in to_plain(ScratchConfig())]
    networks = [f"{_NETWORK}.{size}" for network in _networks() for size in network]
    practice = [f"{_PRACTICE}.{size}" for one in _practices().values() for size in _dotted(one)]
    practice += [f"{_PRACTICE}.learning.practice.group.{size}" for size in to_plain(GroupConfig())]
    named = [
        key
        for group, one in _choices().items()
        for node in one.values()
        for key in _dotted({group: node})
    ]
    named += [
        f"student.backbone.{size}"
        for size in _dotted(to_plain(BackboneConfig(scratch=ScratchConfig())))
    ]
    groups = ["policy", f"family@{_FAMILY}", f"network@{_NETWORK}"]
    keys = list(
        dict.fromkeys([*_dotted(defaults), *families, *networks, *practice, *named, *groups])
    )
    if key.lstrip("+~") not in keys:
        raise HandoffError(f"configuration: unknown key '{key}'{_suggest(key, keys)}.")


def _dotted(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        yield prefix + key
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{prefix}{key}.")


def _suggest(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f", did you mean '{close[0]}'?" if close else f"; known: {', '.join(known[:20])}"
