"""Composes a recipe in `configs/`, with the groups that a recipe or an override may choose from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_type_hints

from flows.config.files import MISSING, compose_file
from flows.recipes.config import PipelineConfig
from flows.stages.config import FinetunePolicyConfig, ReinforcePolicyConfig
from policies.networks.config import NetworkConfig
from policies.policy_config import families
from policies.rl.finetuning.config import FinetuneConfig, PracticeConfig
from policies.rl.off_policy.fast_td3_config import fast_td3, pql
from robots.config import classes_of, to_plain

FAMILY = "family@pretrain.policy"
"""The group of policy families, and where the chosen one stands in the whole configuration."""
GROUPS = ("policy", FAMILY, "network@pretrain.policy.network")
"""What an override may choose from, beside the parts that a recipe goes without."""
PARTS = {"scripted": "expert", "dreams": "play", "bench": "twin", "student": "taught"}
"""Parts that a recipe goes without unless it names one, and the name under which it has the
defaults of its class."""


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
    """Those of the classes, with the policy's family as a group: another `kind` must replace the
    first's keys."""
    plain = to_plain(PipelineConfig())
    pretrain = {key: value for key, value in plain["pretrain"].items() if key != "policy"}
    chosen = {FAMILY: plain["pretrain"]["policy"]["kind"]}
    return {"defaults": [chosen, "_self_"], **plain, "pretrain": pretrain}


def _choices() -> dict[str, dict[str, dict[str, Any]]]:
    """By group and name, the values that a recipe or an override may choose."""
    hints = get_type_hints(PipelineConfig)
    parts = {part: {name: to_plain(classes_of(hints[part])[0]())} for part, name in PARTS.items()}
    networks = [to_plain(network()) for network in classes_of(NetworkConfig)]
    practices = [
        to_plain(FinetunePolicyConfig(learning=FinetuneConfig(practice=practice())))
        for practice in classes_of(PracticeConfig)
    ]
    return {
        "family": {family["kind"]: _with_network(family) for family in _families()},
        "network": {network["kind"]: network for network in networks},
        "finetune": {way["learning"]["practice"]["kind"]: way for way in practices},
        "reinforce": {
            "fast_td3": to_plain(ReinforcePolicyConfig(learning=fast_td3())),
            "pql": to_plain(ReinforcePolicyConfig(worlds=4096, learning=pql())),
        },
        **parts,
    }


def _families() -> list[dict[str, Any]]:
    """The policy families that can be pretrained; one over a backbone must be told where it
    lies."""
    return [to_plain(family.with_gaps(MISSING)) for family in families() if family.pretrained]


def _with_network(family: dict[str, Any]) -> dict[str, Any]:
    """The family with its denoiser, if it has one, as a group: another may replace it."""
    if "network" not in family:
        return {"defaults": ["_self_"], **family}
    own = {key: value for key, value in family.items() if key != "network"}
    return {"defaults": [{"/network@network": family["network"]["kind"]}, "_self_"], **own}
