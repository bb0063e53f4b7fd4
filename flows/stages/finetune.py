"""Stage `finetune`: a policy practises, in simulated worlds or in dreams, and comes out as another
one like it."""

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
    """Lets `inputs["policy"]` practise, going on from what an interrupted attempt left in `out`.

    With `inputs["world_model"]` it is dreamt, and no world is touched; the protocol then gives the
    time limit alone. RL-100 learns from `inputs["demos"]`, too.
    """
    from flows.config.protocols import push_t_published
    from policies.rl.finetuning.finetune import finetune
    from sim.processes.vec_env import placed

    protocol = config.protocol or push_t_published()
    if "world_model" in inputs:
        from policies.world_model.imagined_env import Dreams

        worlds: Callable[[], VecEnv] = partial(
            Dreams, inputs["world_model"], config.worlds, protocol.max_steps
        )
    else:
        from policies.checkpoint import read_card
        from sim.evaluation.evaluate import practice_env, resident_env, stays_on_device
        from sim.evaluation.protocol import check_trained_with

        if stays_on_device(protocol):
            if config.placement.kind != "collocated":
                raise HandoffError(
                    f"finetune: {config.placement.kind} placement of worlds that stay on the device of their policy, "
                    "expected collocated."
                )
            check_trained_with(protocol, read_card(inputs["policy"]).robot)
            resident = partial(resident_env, protocol, config.worlds)
            return finetune(
                config.learning, inputs["policy"], resident, out, progress, inputs.get("demos")
            )
        check_trained_with(protocol, read_card(inputs["policy"]).robot)
        worlds = partial(placed, config.placement, partial(practice_env, protocol), config.worlds)
    return finetune(config.learning, inputs["policy"], worlds, out, progress, inputs.get("demos"))
