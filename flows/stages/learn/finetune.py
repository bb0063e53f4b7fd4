"""Stage `finetune`: RL fine-tuning of a policy, in simulated environments or in imagination."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from flows.artifacts import Dynamics, Episodes, Family, Output, Policy, WorldModel
from flows.evaluation.dynamics import check_dynamics_source, with_dynamics
from flows.evaluation.families import check_family_source, refuse_imagined, with_members
from flows.stages.learn.config import TRAINING_TELEMETRY, FinetunePolicyConfig
from policies.imitation.config import PretrainConfig
from policies.policy_config import PolicyConfig
from policies.rl.finetuning.base import FrozenPolicyConfig, check_runs_on_device
from policies.rl.finetuning.config import (
    FinetuneAlgorithm,
    FinetuneMethodConfig,
    FpoFinetuneConfig,
    ReinFlowFinetuneConfig,
    VlaFinetuneConfig,
)
from policies.world_model.config import WorldModelConfig
from robots.code_version import code_version
from robots.config import classes_of
from robots.errors import HandoffError
from robots.interfaces import Progress, VecEnv

TELEMETRY = TRAINING_TELEMETRY


def check(config: FinetunePolicyConfig, sources: Mapping[str, Any]) -> None:
    """Makes the checks of `policies.rl.finetuning.finetune` before hours of imitation learning."""
    method, pretraining = config.algorithm, sources["policy"]
    check_dynamics_source(config.protocol, sources)
    refuse_imagined(sources)
    check_family_source(config.protocol, sources)
    if {"dynamics", "world_model"} <= sources.keys():
        raise HandoffError(
            "finetune: in imagination no arm is simulated, so the input 'dynamics' has no effect. Remove it, or "
            "'world_model'."
        )
    _check_imagination(config, sources)
    _check_demos(method, given="demos" in sources)
    _check_device(config, pretraining, imagined="world_model" in sources)
    if isinstance(pretraining, FinetunePolicyConfig) and pretraining.algorithm.learns_beside:
        kind, does = pretraining.algorithm.kind, pretraining.algorithm.learns_beside
        raise HandoffError(
            f"finetune: the policy is fine-tuned by '{kind}' before, and the actor that {does} is not trained further. "
            f"Fine-tune the policy that '{kind}' began with."
        )
    if not isinstance(pretraining, PretrainConfig) or _is_outside(method):
        return
    model = pretraining.policy
    if "world_model" in sources and model.sensor_fields:
        raise HandoffError(
            f"finetune: the policy observes {list(model.sensor_fields)}, but a world model imagines vectors, not "
            "pictures. Fine-tune it in simulated environments, without the input 'world_model'."
        )
    if model.most_decided:
        raise HandoffError(
            "finetune: the policy is trained with decided actions (policy.prefix), of which no method of fine-tuning "
            "knows. Set policy.prefix=0."
        )
    _check_window(model, config.protocol.max_steps)
    if method.kind in model.finetuning_methods:
        if isinstance(method, FrozenPolicyConfig):
            method.check_sizes(config.rollouts, model.horizon)
        return
    if method.learns_beside:
        raise HandoffError(
            f"finetune: method '{method.kind}' with a policy of the family '{model.kind}', beside whose sampler no "
            f"actor can stand that {method.learns_beside}; expected a diffusion or flow policy, or a 'vla'. Use "
            "another method."
        )
    if isinstance(method, VlaFinetuneConfig):
        raise HandoffError(
            f"finetune: method '{method.kind}' with a policy of the family '{model.kind}'; expected 'token_vla' or "
            "'vla' without policy.checkpoint."
        )
    if isinstance(method, FpoFinetuneConfig | ReinFlowFinetuneConfig):
        vla = ", or a 'vla' without policy.checkpoint" if method.kind == "fpo" else ""
        raise HandoffError(
            f"finetune: method '{method.kind}' with a policy of the family '{model.kind}' that is no flow policy; "
            f"expected policy.objective: flow{vla}. 'dppo' fine-tunes a diffusion policy."
        )
    language = " and a sentence encoder" if model.language_conditioned else ""
    raise HandoffError(
        f"finetune: method '{method.kind}' with a policy of the family '{model.kind}'{language}; expected a diffusion "
        "or flow policy, without policy.language unless the method is 'dppo', 'fpo', 'reinflow', 'dsrl' or 'rl_token'."
    )


def external(config: FinetunePolicyConfig, fetch: bool) -> dict[str, str]:
    """Returns the version of the code of an algorithm outside the repository."""
    method = config.algorithm
    return {"algorithm": code_version(type(method).__module__)} if _is_outside(method) else {}


def run(
    config: FinetunePolicyConfig,
    out: Path,
    progress: Progress,
    *,
    policy: Policy,
    demos: Episodes | None = None,
    world_model: WorldModel | None = None,
    dynamics: Dynamics | None = None,
    family: Family | None = None,
) -> Output[Policy]:
    """Fine-tunes `policy`, resuming an interrupted attempt in `out`.

    With `world_model`, rollouts are imagined, rewarded as `config.imagination` says, and no
    environment is stepped; the protocol then defines the time limit alone. RL-100, EXPO and
    Q-chunking also learn from `demos`. With `dynamics`, the simulated arm has the tuned parameters;
    with `family`, the episodes are those of all its members, equally often.

    Raises:
        HandoffError: the policy does not fit the method or the environments.
    """
    from policies.rl.finetuning.finetune import finetune

    protocol = with_members(with_dynamics(config.protocol, dynamics), family)
    config = replace(config, protocol=protocol)
    env = _environments(config, policy, world_model)
    return Output(finetune(config, policy, env, out, progress, demos))


def _is_outside(method: FinetuneAlgorithm) -> bool:
    return type(method) not in classes_of(FinetuneMethodConfig)


def _check_window(model: PolicyConfig, longest: int) -> None:
    """Refuses a policy that observes other steps than the two newest, or the first and the newest,
    of episodes of at most `longest` steps; before hours of imitation learning."""
    history, stride = model.n_obs_steps, model.observation_stride
    if history > 2 or (history == 2 and 1 < stride < longest):
        raise HandoffError(
            f"finetune: the policy observes {history} steps, {stride} apart, of episodes of at most {longest}; "
            "expected one step, the two newest, or two that are an episode's length apart, the first and the newest."
        )


def _check_imagination(config: FinetunePolicyConfig, sources: Mapping[str, Any]) -> None:
    """Refuses a charge for the disagreement of world models where none imagines, or one alone."""
    if not config.imagination.penalty:
        return
    if "world_model" not in sources:
        raise HandoffError(
            "finetune: imagination.penalty charges the disagreement of world models, but nothing is imagined; the "
            "input 'world_model' is missing."
        )
    imagining = sources["world_model"]
    if isinstance(imagining, WorldModelConfig) and imagining.members == 1:
        raise HandoffError(
            f"finetune: imagination.penalty={config.imagination.penalty} with a single world model, which cannot "
            "disagree. Set members of the stage 'world_model' to 3 or more."
        )


def _check_demos(method: FinetuneAlgorithm, *, given: bool) -> None:
    """Refuses demonstrations that the algorithm does not read, and a lack of those that it
    needs."""
    kind = getattr(method, "kind", type(method).__name__)
    if method.learns_from_demos and not given:
        raise HandoffError(
            f"finetune: method '{kind}' also learns from the demonstrations; its input 'demos' is missing."
        )
    if given and not method.learns_from_demos:
        raise HandoffError(
            f"finetune: method '{kind}' does not learn from demonstrations, but has the input 'demos'. Remove it."
        )


def _check_device(config: FinetunePolicyConfig, pretraining: Any = None, *, imagined: bool) -> None:
    """Refuses environments that stay on a device with an algorithm or a placement that keeps them
    on the host, or with cameras that the policy of the options `pretraining` does not observe,
    before hours of imitation learning."""
    from sim.evaluation.evaluate import stays_on_device

    if imagined or not stays_on_device(config.protocol):
        return
    check_runs_on_device(config.algorithm)
    if config.placement.kind != "collocated":
        raise HandoffError(
            f"finetune: {config.placement.kind} placement of environments that stay on the device of their "
            "policy, expected collocated."
        )
    unseen = isinstance(pretraining, PretrainConfig) and not pretraining.policy.sensor_fields
    if unseen and config.protocol.options.get("cameras") is not None:
        raise HandoffError(
            f"finetune: the protocol '{config.protocol.name}' has cameras, which the policy does not observe, so that "
            "pictures would be rendered at every step and never seen. Remove cameras, or give policy.image_fields."
        )


def _environments(
    config: FinetunePolicyConfig, policy: Policy, world_model: WorldModel | None
) -> Callable[[], Any]:
    """Returns the factory of the environments: imagined, on the device of the policy, or in
    processes."""
    from policies.checkpoint import read_card
    from sim.evaluation.evaluate import device_env, stays_on_device, training_env
    from sim.evaluation.protocol import check_trained_with
    from sim.processes.vec_env import place_vec_env

    protocol = config.protocol
    if world_model is not None:
        from policies.world_model.imagined_env import ImaginedVecEnv

        env: Callable[[], VecEnv] = partial(
            ImaginedVecEnv,
            world_model,
            config.num_envs,
            protocol.max_steps,
            config.imagination,
        )
        return env
    if stays_on_device(protocol):
        _check_device(config, imagined=False)
        check_trained_with(protocol, read_card(policy).robot)
        return partial(device_env, protocol, config.num_envs)
    check_trained_with(protocol, read_card(policy).robot)
    make = partial(training_env, protocol)
    return partial(place_vec_env, config.placement, make, config.num_envs)
