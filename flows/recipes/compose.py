"""Composes a recipe in `configs/` with overrides and the option groups that they may choose
from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_type_hints

from flows.config.files import MISSING, compose_file
from flows.recipes.config import PipelineConfig
from flows.stages.config import FinetunePolicyConfig, ReinforcePolicyConfig
from policies.networks.config import NetworkConfig
from policies.policy_config import families
from policies.rl.finetuning.config import FinetuneConfig, FinetuneMethodConfig
from policies.rl.off_policy.fast_td3_config import fast_td3, pql
from robots.config import classes_of, to_plain

FAMILY = "family@pretrain.policy"
"""The group of policy families, and the place of the chosen one in the whole configuration."""
GROUPS = ("policy", FAMILY, "network@pretrain.policy.network")
"""Groups that an override may choose from, in addition to the optional parts."""
OPTIONAL_PARTS = {
    "scripted": "expert",
    "imagination": "play",
    "bench": "twin",
    "student": "on_policy",
}
"""Parts of a recipe that are off by default, and the option that turns them on with the defaults of
their class."""


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
    return compose_file(
        PipelineConfig,
        name,
        overrides,
        defaults=_defaults(),
        choices=_choices(),
        groups=GROUPS,
    )


def _defaults() -> dict[str, Any]:
    """Defaults of the classes, with the policy family as a group: another `kind` must replace all
    keys of the default family."""
    plain = to_plain(PipelineConfig())
    pretrain = {key: value for key, value in plain["pretrain"].items() if key != "policy"}
    chosen = {FAMILY: plain["pretrain"]["policy"]["kind"]}
    return {"defaults": [chosen, "_self_"], **plain, "pretrain": pretrain}


def _choices() -> dict[str, dict[str, dict[str, Any]]]:
    """Returns the options of every group that a recipe or an override may choose from."""
    hints = get_type_hints(PipelineConfig)
    parts = {
        part: {name: to_plain(classes_of(hints[part])[0]())}
        for part, name in OPTIONAL_PARTS.items()
    }
    networks = [to_plain(network()) for network in classes_of(NetworkConfig)]
    methods = [
        to_plain(FinetunePolicyConfig(learning=FinetuneConfig(algorithm=method())))
        for method in classes_of(FinetuneMethodConfig)
    ]
    return {
        "family": {family["kind"]: _with_network(family) for family in _families()},
        "network": {network["kind"]: network for network in networks},
        "finetune": {method["learning"]["algorithm"]["kind"]: method for method in methods},
        "reinforce": {
            "fast_td3": to_plain(ReinforcePolicyConfig(learning=fast_td3())),
            "pql": to_plain(ReinforcePolicyConfig(num_envs=4096, learning=pql())),
        },
        **parts,
    }


def _families() -> list[dict[str, Any]]:
    """The policy families that can be pretrained; the folder of a backbone has no default."""
    return [
        to_plain(family.with_placeholders(MISSING)) for family in families() if family.pretrained
    ]


def _with_network(family: dict[str, Any]) -> dict[str, Any]:
    """The family with its denoiser, if it has one, as a group, so that another can replace it."""
    if "network" not in family:
        return {"defaults": ["_self_"], **family}
    plain = {key: value for key, value in family.items() if key != "network"}
    return {"defaults": [{"/network@network": family["network"]["kind"]}, "_self_"], **plain}
