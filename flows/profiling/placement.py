"""Predicts the speed of each placement of a recipe's fine-tuning environments."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from robots.interfaces import Progress, VecEnv, no_progress

if TYPE_CHECKING:
    from flows.stages.learn.config import FinetunePolicyConfig
    from policies.imitation.config import PretrainConfig
    from policies.policy import ChunkPolicy
    from policies.policy_config import PolicyConfig
    from policies.rl.collection.placement_profile import PlacementTimes
    from sim.evaluation.protocol import Protocol


def profile_placements(
    finetuning: FinetunePolicyConfig,
    pretraining: PretrainConfig,
    seconds: float = 60.0,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Measures the fine-tuning of a vision-language-action policy with random weights.

    Args:
        finetuning: options of the fine-tuning.
        pretraining: options of the imitation before it.
        seconds: duration of the measurements [s].
        progress: called with the seconds spent.

    Returns:
        `seconds`, the median time of every component [s]; `transfer`, the time of a transfer to
        another process [s]; `rates`, the environment steps per second of every placement with their
        95 % interval; and `recommended`, the name of a placement.

    Raises:
        HandoffError: see `policies.rl.collection.placement_profile.measure`.
    """
    import numpy as np

    from policies.rl.collection.placement_profile import predict, recommended
    from policies.training.loop import torch_threads

    with torch_threads(finetuning.threads):
        times = measure_placements(
            finetuning, pretraining.policy, finetuning.protocol, seconds, progress
        )
    rates = predict(times, finetuning.decisions)
    return {
        "seconds": {
            component: float(np.median(samples))
            for component, samples in times.seconds.items()
            if samples
        },
        "transfer": times.transfer,
        "rates": {kind: asdict(rate) for kind, rate in rates.items()},
        "recommended": recommended(rates),
    }


def measure_placements(
    finetuning: FinetunePolicyConfig,
    model: PolicyConfig,
    protocol: Protocol,
    seconds: float,
    progress: Progress,
) -> PlacementTimes:
    """Measures the components of fine-tuning; see `profile`."""
    from policies.rl.collection.chunk_env import ChunkEnv
    from policies.rl.collection.placement_profile import measure
    from policies.rl.collection.split_chunk_env import SplitChunkEnv
    from policies.rl.finetuning.config import VlaFinetuneConfig
    from policies.rl.finetuning.vla import VlaFinetuning, check_language_conditioned
    from sim.evaluation.evaluate import training_env
    from sim.processes.vec_env import ProcessVecEnv

    make = partial(training_env, protocol)
    number = finetuning.num_envs
    method = finetuning.algorithm
    assert isinstance(method, VlaFinetuneConfig)
    envs = [make(number)]
    try:
        module = check_language_conditioned(random_weight_policy(model, protocol.task, envs[0]))
        chunk_options = (
            module,
            model.n_action_steps,
            count(finetuning.first_seed),
            method.learning.discount,
            finetuning.reward,
        )
        # The same environments in this process, in another process, and split over processes.
        here = ChunkEnv(envs[0], *chunk_options)
        finetune = VlaFinetuning(method, module, here, finetuning.seed)
        placement = finetuning.placement
        stages = max(2, placement.parts)
        for parts in (1, stages):
            envs.append(ProcessVecEnv(make, number, parts, placement.simulators, placement.cluster))
        elsewhere = ChunkEnv(envs[1], *chunk_options)
        split = SplitChunkEnv(envs[2], *chunk_options)  # type: ignore[arg-type]
        rollout = finetune.collect(finetuning.decisions)
        return measure(
            finetune.actor,
            here,
            elsewhere,
            split,
            partial(finetune.learn, rollout),
            seconds,
            progress,
        )
    finally:
        for env in envs:
            env.close()


def random_weight_policy(model: PolicyConfig, task: str, env: VecEnv) -> ChunkPolicy:
    """Returns a policy with random weights, for the observations of these environments."""
    from policies.card import PolicyCard
    from policies.load import new_module
    from robots.spec import FieldSpec

    spec = env.observation_spec
    card = PolicyCard(
        task=task,
        rate_hz=env.rate_hz,
        observation={field: spec[field] for field in model.observation_fields},
        sensors={field: spec[field] for field in model.sensor_fields},
        action=FieldSpec(shape=(env.action_spec.size,)),
        model=model,
    )
    return new_module(model, card.shapes)
