"""Stage `finetune`: RL fine-tuning of a policy, in simulated environments or in imagination."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from flows.stages.config import FinetunePolicyConfig
from robots.errors import HandoffError
from robots.interfaces import Progress, VecEnv


def run(
    config: FinetunePolicyConfig, inputs: dict[str, Path], out: Path, progress: Progress
) -> dict[str, Any]:
    """Fine-tunes `inputs["policy"]`, resuming an interrupted attempt in `out`.

    With `inputs["world_model"]`, rollouts are imagined and no environment is stepped; the protocol
    then defines the time limit alone. RL-100 also learns from `inputs["demos"]`.
    """
    from flows.config.protocols import push_t_published
    from policies.rl.finetuning.finetune import finetune
    from sim.processes.vec_env import place_vec_env

    protocol = config.protocol or push_t_published()
    if "world_model" in inputs:
        from policies.world_model.imagined_env import ImaginedVecEnv

        env: Callable[[], VecEnv] = partial(
            ImaginedVecEnv, inputs["world_model"], config.num_envs, protocol.max_steps
        )
    else:
        from policies.checkpoint import read_card
        from sim.evaluation.evaluate import device_env, stays_on_device, training_env
        from sim.evaluation.protocol import check_trained_with

        if stays_on_device(protocol):
            if config.placement.kind != "collocated":
                raise HandoffError(
                    f"finetune: {config.placement.kind} placement of environments that stay on the device of their "
                    "policy, expected collocated."
                )
            check_trained_with(protocol, read_card(inputs["policy"]).robot)
            on_device = partial(device_env, protocol, config.num_envs)
            return finetune(
                config.learning, inputs["policy"], on_device, out, progress, inputs.get("demos")
            )
        check_trained_with(protocol, read_card(inputs["policy"]).robot)
        env = partial(
            place_vec_env, config.placement, partial(training_env, protocol), config.num_envs
        )
    return finetune(config.learning, inputs["policy"], env, out, progress, inputs.get("demos"))
