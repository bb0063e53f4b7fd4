"""Composition of recipes: defaults of the classes, values from YAML and overrides, clear errors."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

import configs
from flows.config.files import available
from flows.config.protocols import read_protocol
from flows.recipes.compose import compose
from flows.recipes.config import PipelineConfig
from flows.recipes.pipeline import stages
from flows.runner.plan import plan
from policies.networks.config import NetworkConfig, ScratchConfig, TransformerConfig, UnetConfig
from policies.policy_config import ActConfig, DiffusionPolicyConfig, TokenVlaConfig
from policies.rl.finetuning.config import VlaFinetuneConfig
from policies.rl.on_policy.config import GroupConfig
from robots.config import to_plain
from robots.errors import HandoffError

FAMILY = "pretrain.policy"
POLICIES = sorted(file.stem for file in (Path(configs.__path__[0]) / "policy").glob("*.yaml"))
DENOISERS = ("mlp", "unet", "unet_image", "transformer", "flow")
"""Policies of the diffusion family; all others have the name of their family."""


def chosen(name: str, folder: Path) -> list[str]:
    """Overrides that choose a policy, with its mandatory options."""
    return [
        f"+policy={name}",
        *([f"{FAMILY}.backbone.folder={folder}"] if name in ("vla", "token_vla") else []),
    ]


@pytest.mark.parametrize("name", available())
def test_every_shipped_configuration_composes(name: str) -> None:
    assert compose(name).name == name


def test_demo_is_the_defaults_of_the_classes() -> None:
    assert compose("demo") == PipelineConfig(name="demo")


def test_override_reaches_its_field() -> None:
    assert compose("demo", ["pretrain.training.steps=7"]).pretrain.training.steps == 7


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["pretrain.training.stepz=7"],
            "unknown key 'pretrain.training.stepz', did you mean 'pretrain.training.steps'",
        ),
        (["pretrian.seed=7"], "unknown key 'pretrian.seed'"),
        (["pretrain.training.steps=many"], "'pretrain.training.steps' is 'many'"),
        (["pretrain.training.steps"], "has no '='"),
        (["gate.tolerance=[1,2"], "configs/demo.yaml"),
    ],
)
def test_bad_override_is_named_by_its_path(overrides: list[str], message: str) -> None:
    with pytest.raises(HandoffError) as caught:
        compose("demo", overrides)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", ["dppo", "best_of_n"])
def test_finetuning_precedes_all_stages_after_imitation(method: str) -> None:
    composed = compose(
        "demo",
        [f"+finetune={method}", "finetune.learning.rollouts=3", "finetune.learning.reward.step=-1"],
    )
    assert composed.finetune is not None
    assert composed.finetune.learning.algorithm.kind == method
    assert (composed.finetune.learning.rollouts, composed.finetune.learning.reward.step) == (
        3,
        -1.0,
    )
    declared = {stage.name: stage for stage in stages(composed, fetch=False)}
    assert declared["finetune"].config.protocol == composed.protocol
    for later in ("distil", "evaluate_teacher", "evaluate_control", "export_teacher"):
        assert declared["finetune"] in declared[later].inputs.values()
    assert declared["evaluate_pretrained"].inputs["policy"] is declared["pretrain"]
    assert "finetune" not in [stage.name for stage in stages(compose("demo"), fetch=False)]


@pytest.mark.parametrize("name", ["act", "unet_image"])
def test_a_policy_that_cannot_be_finetuned_is_refused_before_imitation(name: str) -> None:
    composed = compose("demo", [f"+policy={name}", "+finetune=best_of_n"])
    with pytest.raises(
        HandoffError, match="expected a diffusion or flow policy without image observations"
    ):
        stages(composed, fetch=False)


def test_an_override_of_finetuning_that_is_off_is_refused() -> None:
    with pytest.raises(HandoffError, match=r"Could not override 'finetune\.num_envs'"):
        compose("demo", ["finetune.num_envs=3"])


def test_unknown_pipeline_gets_a_suggestion() -> None:
    with pytest.raises(HandoffError, match="did you mean 'demo'"):
        compose("dem")


def denoiser(composed: PipelineConfig) -> NetworkConfig:
    """The denoiser of a diffusion policy."""
    assert isinstance(composed.pretrain.policy, DiffusionPolicyConfig)
    return composed.pretrain.policy.network


def test_a_policy_of_the_group_brings_its_network_and_its_rates() -> None:
    unet = compose("demo", ["+policy=unet"])
    assert denoiser(unet) == UnetConfig()
    assert unet.pretrain.policy.n_obs_steps == 2
    training = unet.pretrain.training
    assert (training.learning_rate, training.warmup_steps, training.betas) == (
        1e-4,
        500,
        (0.95, 0.999),
    )
    transformer = compose("demo", ["+policy=transformer"])
    assert denoiser(transformer) == TransformerConfig()
    assert (transformer.pretrain.training.weight_decay, transformer.pretrain.training.decay) == (
        0.1,
        "matrices",
    )
    assert compose("demo", ["+policy=mlp"]) == compose("demo")


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_of_the_group_replaces_the_whole_node(name: str, tmp_path: Path) -> None:
    model = compose("demo", chosen(name, tmp_path)).pretrain.policy
    assert model.kind == ("diffusion" if name in DENOISERS else name)
    assert set(to_plain(model)) == {field.name for field in fields(model)}


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_of_the_group_can_be_planned(name: str, tmp_path: Path) -> None:
    composed = compose("demo", [*chosen(name, tmp_path), "ingest.download=false"])
    names = [stage.name for stage in stages(composed, fetch=False)]
    assert names[:2] == ["ingest", "pretrain"]
    assert ("deploy" in names) == (name in DENOISERS and name not in ("unet_image", "flow"))
    assert plan(stages(composed, fetch=False), tmp_path)[0].action == "run"


def test_a_family_without_a_default_for_a_key_names_it() -> None:
    with pytest.raises(HandoffError, match=r"pretrain\.policy\.backbone\.folder must be given"):
        compose("demo", [f"family@{FAMILY}=vla"])


def test_an_override_reaches_the_chosen_family() -> None:
    model = compose("demo", [f"family@{FAMILY}=act", f"{FAMILY}.kl_weight=3"]).pretrain.policy
    assert isinstance(model, ActConfig)
    assert model.kl_weight == 3.0


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            [f"{FAMILY}.kl_weight=3"],
            "'pretrain.policy.kl_weight'. Does the key belong to another policy family",
        ),
        (
            [f"family@{FAMILY}=act", f"{FAMILY}.kl_wieght=3"],
            "did you mean 'pretrain.policy.kl_weight'",
        ),
        (
            [f"family@{FAMILY}=act", f"{FAMILY}.kl_weight=much"],
            "'pretrain.policy.kl_weight' is 'much'",
        ),
        (["+policy=bcc"], "bcc"),
    ],
)
def test_a_key_that_the_family_does_not_have_is_named_by_its_path(
    overrides: list[str], message: str
) -> None:
    with pytest.raises(HandoffError) as caught:
        compose("demo", overrides)
    assert message in str(caught.value)


def test_push_t_from_images_has_the_papers_options_under_the_image_protocol() -> None:
    composed = compose("push_t_image")
    assert composed.protocol == read_protocol("push_t_image")
    published = read_protocol("push_t_published")
    assert composed.protocol == replace(published, name="push_t_image", options={"picture": 96})
    model, training = composed.pretrain.policy, composed.pretrain.training
    assert (model.observation_fields, model.image_fields) == (("agent",), ("image",))
    assert (model.n_obs_steps, model.horizon, model.n_action_steps) == (2, 16, 8)
    assert denoiser(composed) == UnetConfig(widths=(512, 1024, 2048), time_embedding=128)
    assert (training.batch_size, training.learning_rate, training.weight_decay) == (64, 1e-4, 1e-6)
    assert (training.betas, training.schedule, training.warmup_steps) == (
        (0.95, 0.999),
        "cosine",
        500,
    )
    assert (training.ema_power, training.device, composed.evaluate.device) == (0.75, "cuda", "cuda")


def test_push_t_from_images_composes_without_a_gpu() -> None:
    composed = compose(
        "push_t_image", ["pretrain.training.device=cpu", "pretrain.training.steps=3"]
    )
    assert (composed.pretrain.training.device, composed.evaluate.device) == ("cpu", "cpu")


def test_an_override_reaches_the_chosen_network() -> None:
    composed = compose("demo", ["+policy=unet", "pretrain.policy.network.widths=[64,128]"])
    assert denoiser(composed) == UnetConfig(widths=(64, 128))


def test_a_key_of_another_network_is_named_by_its_path() -> None:
    with pytest.raises(
        HandoffError, match=r"'pretrain\.policy\.network\.width', did you mean 'widths'"
    ):
        compose("demo", ["pretrain.policy.network.kind=unet"])


def test_a_small_backbone_and_groups_are_reached_by_overrides() -> None:
    family = [
        f"family@{FAMILY}=token_vla",
        f"{FAMILY}.backbone.folder=null",
        f"{FAMILY}.observation_fields=[agent]",
    ]
    small = [
        f"{FAMILY}.backbone.scratch={{width: 64, layers: 3}}",
        "finetune.learning.algorithm.group={size: 4}",
    ]
    config = compose("demo", [*family, "+finetune=vla", *small])
    policy, finetuning = config.pretrain.policy, config.finetune
    assert isinstance(policy, TokenVlaConfig)
    assert policy.backbone.scratch == ScratchConfig(width=64, layers=3)
    assert finetuning is not None
    assert isinstance(finetuning.learning.algorithm, VlaFinetuneConfig)
    assert finetuning.learning.algorithm.group == GroupConfig(size=4)
    names = [stage.name for stage in stages(config, fetch=False)]
    assert names == ["ingest", "pretrain", "evaluate_pretrained", "finetune", "evaluate_teacher"]


def test_a_policy_without_language_cannot_be_finetuned_as_a_vla() -> None:
    with pytest.raises(HandoffError, match="expected 'token_vla'"):
        stages(compose("demo", ["+finetune=vla"]), fetch=False)
