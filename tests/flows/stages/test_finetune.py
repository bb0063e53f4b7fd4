"""Stage `finetune`: what is refused before anything runs, and what enters the cache key."""

from dataclasses import replace

import pytest

from flows.config.options import build
from flows.stages.learn.config import FinetunePolicyConfig
from flows.stages.learn.finetune import check, external
from policies.imitation.config import PretrainConfig
from policies.language.config import SentenceEncoderConfig
from policies.networks.config import BackboneConfig
from policies.policy_config import (
    ActConfig,
    DiffusionPolicyConfig,
    PolicyConfig,
    TokenVlaConfig,
    VlaConfig,
)
from policies.rl.finetuning.config import FinetuneAlgorithm
from robots.config import config, to_plain, validate
from robots.errors import HandoffError

DEMOS = {"policy": PretrainConfig(), "demos": None}


@config
class MineConfig(FinetuneAlgorithm):
    """An algorithm outside Handoff."""

    kind: str = f"{__name__}.MineConfig"
    discount: float = 0.9
    """Discount per action."""


@config
class NoAlgorithm:
    """Options of something else."""

    kind: str = f"{__name__}.NoAlgorithm"


def options(**algorithm: object) -> FinetunePolicyConfig:
    return build(FinetunePolicyConfig, {"algorithm": algorithm}, "teacher")


@pytest.mark.parametrize("kind", ["expo", "q_chunking", "rl100"])
def test_methods_that_learn_from_demonstrations_require_them(kind: str) -> None:
    check(options(kind=kind), DEMOS)
    with pytest.raises(HandoffError, match=f"'{kind}' also learns from the demonstrations"):
        check(options(kind=kind), {"policy": PretrainConfig()})


@pytest.mark.parametrize("kind", ["best_of_n", "dppo", "dsrl"])
def test_demonstrations_that_are_not_read_are_refused(kind: str) -> None:
    check(options(kind=kind), {"policy": PretrainConfig()})
    with pytest.raises(HandoffError, match="does not learn from demonstrations"):
        check(options(kind=kind), DEMOS)


def test_a_frozen_policy_is_refused_sizes_with_which_nothing_would_be_learned() -> None:
    def checked(rollouts: int, **algorithm: object) -> None:
        check(replace(options(**algorithm), rollouts=rollouts), {"policy": PretrainConfig()})

    for kind in ("dsrl", "rl_token"):
        checked(3, kind=kind, warm_up=3)
        with pytest.raises(HandoffError, match="warm_up is 4, but there are 3 rollouts"):
            checked(3, kind=kind, warm_up=4)
    horizon = PretrainConfig().policy.horizon
    checked(3, kind="dsrl", noise_steps=horizon)
    with pytest.raises(
        HandoffError, match=f"noise_steps is {horizon + 1}, expected 1 to {horizon}"
    ):
        checked(3, kind="dsrl", noise_steps=horizon + 1)


@pytest.mark.parametrize("kind", ["expo", "q_chunking"])
def test_a_family_without_a_denoiser_is_refused_and_one_with_cameras_is_not(kind: str) -> None:
    def checked(policy: PolicyConfig) -> None:
        imitated = replace(PretrainConfig(), policy=policy)
        check(options(kind=kind), {"policy": imitated, "demos": None})

    with pytest.raises(HandoffError, match="expected a diffusion or flow policy"):
        checked(ActConfig())
    with pytest.raises(HandoffError, match=r"and a sentence encoder; expected .* without policy"):
        checked(DiffusionPolicyConfig(language=SentenceEncoderConfig()))
    checked(DiffusionPolicyConfig(image_fields=("top",)))
    check(options(kind=kind), DEMOS)


@pytest.mark.parametrize(
    ("steps", "stride", "taken"),
    [(1, 1, True), (2, 1, True), (2, 300, True), (2, 5, False), (3, 1, False)],
)
def test_what_a_policy_remembers_is_checked_before_hours_of_imitation(
    steps: int, stride: int, taken: bool
) -> None:
    """In episodes of at most 300 steps."""
    policy = DiffusionPolicyConfig(n_obs_steps=steps, observation_stride=stride)
    sources = {"policy": replace(PretrainConfig(), policy=policy)}
    if taken:
        check(options(kind="best_of_n"), sources)
        return
    with pytest.raises(HandoffError, match="of episodes of at most 300; expected one step"):
        check(options(kind="best_of_n"), sources)


def test_a_key_of_another_method_is_refused_with_its_readers() -> None:
    with pytest.raises(
        HandoffError,
        match="is not read by the kind 'q_chunking', only by expo",
    ):
        options(kind="q_chunking", beta=0.1)


@pytest.mark.parametrize(
    ("key", "value"), [("samples", 0), ("discount", 1.5), ("demo_fraction", 1.0), ("beta", 0.0)]
)
def test_values_out_of_range_are_refused(key: str, value: float) -> None:
    with pytest.raises(HandoffError, match=f"algorithm.{key}' is {value}"):
        options(kind="expo", **{key: value})


def test_an_algorithm_of_another_package_is_named_by_its_import_path() -> None:
    made = options(kind=f"{__name__}.MineConfig", discount=0.8)
    assert made.algorithm == MineConfig(discount=0.8)
    plain = to_plain(made)
    assert plain["algorithm"] == {"kind": f"{__name__}.MineConfig", "discount": 0.8}
    assert validate(FinetunePolicyConfig, plain) == made
    # Its code enters the cache key; that of Handoff's own does already.
    assert set(external(made, False)) == {"algorithm"}
    assert external(options(kind="expo"), False) == {}


BESIDE = pytest.mark.parametrize("kind", ["dsrl", "rl_token"])
"""Methods that learn an actor beside the sampler of a frozen policy."""


@BESIDE
@pytest.mark.parametrize(
    "policy",
    [
        DiffusionPolicyConfig(),
        DiffusionPolicyConfig(objective="flow", step_conditioned=True),
        DiffusionPolicyConfig(language=SentenceEncoderConfig(folder="encoder")),
        VlaConfig(backbone=BackboneConfig(folder="backbone")),
        VlaConfig(backbone=BackboneConfig(folder="backbone"), checkpoint="pi0"),
    ],
)
def test_an_actor_stands_beside_every_sampler_with_an_initial_noise(
    kind: str, policy: PolicyConfig
) -> None:
    assert kind in policy.finetuning_methods
    if not getattr(policy, "step_conditioned", False):
        check(options(kind=kind), {"policy": replace(PretrainConfig(), policy=policy)})


FLOW = DiffusionPolicyConfig(objective="flow")
VLA = VlaConfig(backbone=BackboneConfig(folder="backbone"))


@pytest.mark.parametrize(
    ("kind", "policy"),
    [
        ("fpo", FLOW),
        ("fpo", replace(FLOW, language=SentenceEncoderConfig(folder="encoder"))),
        ("fpo", replace(FLOW, image_fields=("top",))),
        ("fpo", VLA),
        ("reinflow", FLOW),
        ("reinflow", replace(FLOW, language=SentenceEncoderConfig(folder="encoder"))),
    ],
)
def test_fpo_and_reinflow_take_flow_policies(kind: str, policy: PolicyConfig) -> None:
    check(options(kind=kind), {"policy": replace(PretrainConfig(), policy=policy)})


@pytest.mark.parametrize(
    ("kind", "policy"),
    [
        ("fpo", DiffusionPolicyConfig()),
        ("fpo", ActConfig()),
        ("fpo", replace(VLA, checkpoint="pi0")),
        ("reinflow", DiffusionPolicyConfig()),
        ("reinflow", VLA),
    ],
)
def test_fpo_and_reinflow_refuse_other_policies(kind: str, policy: PolicyConfig) -> None:
    with pytest.raises(HandoffError, match=r"that is no flow policy; expected policy\.objective"):
        check(options(kind=kind), {"policy": replace(PretrainConfig(), policy=policy)})


@BESIDE
@pytest.mark.parametrize(
    "policy", [ActConfig(), TokenVlaConfig(backbone=BackboneConfig(folder="backbone"))]
)
def test_no_actor_stands_beside_other_policies(kind: str, policy: PolicyConfig) -> None:
    with pytest.raises(HandoffError, match=f"method '{kind}' .* beside whose sampler no actor"):
        check(options(kind=kind), {"policy": replace(PretrainConfig(), policy=policy)})


@BESIDE
def test_a_policy_with_such_an_actor_is_not_finetuned_further(kind: str) -> None:
    with pytest.raises(HandoffError, match=f"is fine-tuned by '{kind}' before"):
        check(options(kind="dppo"), {"policy": options(kind=kind)})


def test_a_class_that_is_no_algorithm_is_refused() -> None:
    kind = {"kind": f"{__name__}.NoAlgorithm"}
    with pytest.raises(HandoffError, match=r"is no .*FinetuneAlgorithm"):
        options(**kind)
    with pytest.raises(HandoffError, match=r"is no .*FinetuneAlgorithm"):
        validate(FinetunePolicyConfig, to_plain(FinetunePolicyConfig()) | {"algorithm": kind})
