"""Stage `finetune`: a policy practises, in simulated worlds or in dreams, and comes out as another
one like it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any

from policies.placement.config import PlacementConfig
from policies.rl.finetuning.config import FinetuneConfig, VlaPracticeConfig
from robots.config import config
from robots.errors import HandoffError
from robots.interfaces import Progress, VecEnv
from sim.evaluation.protocol import Protocol


@config
class FinetunePolicyConfig:
    """Where a policy practises, and how."""

    protocol: Protocol | None = None
    """Its worlds, time limit and chunks; its seeds are not practised on, they are for evaluation.
    None takes that of the pipeline's evaluations. In dreams it gives the time limit."""
    worlds: int = 50
    """Stepped together."""
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    """Where they are simulated, if they are not dreamt."""
    learning: FinetuneConfig = field(default_factory=FinetuneConfig)

    def __post_init__(self) -> None:
        if self.placement.kind == "hybrid" and not isinstance(
            self.learning.practice, VlaPracticeConfig
        ):
            raise HandoffError(
                f"finetune: hybrid placement of a practice of the kind '{self.learning.practice.kind}', which decides "
                "for all worlds at once; expected 'vla', or disaggregated worlds."
            )


def run(
    config: FinetunePolicyConfig, inputs: dict[str, Path], out: Path, progress: Progress
) -> dict[str, Any]:
    """Lets `inputs["policy"]` practise, going on from what an interrupted attempt left in `out`.

    With `inputs["world_model"]` it is dreamt, and no world is touched; the protocol then gives the
    time limit alone. RL-100 learns from `inputs["demos"]`, too.
    """
    from flows.config.protocols import push_t_published
    from policies.placement.vec_env import placed
    from policies.rl.finetuning.finetune import finetune

    protocol = config.protocol or push_t_published()
    if "world_model" in inputs:
        from policies.world_model.imagined_env import Dreams

        worlds: Callable[[], VecEnv] = partial(
            Dreams, inputs["world_model"], config.worlds, protocol.max_steps
        )
    else:
        from sim.evaluation.evaluate import practice_env, resident_env, stays_on_device

        if stays_on_device(protocol):
            if config.placement.kind != "collocated":
                raise HandoffError(
                    f"finetune: {config.placement.kind} placement of worlds that stay on the device of their policy, "
                    "expected collocated."
                )
            resident = partial(resident_env, protocol, config.worlds)
            return finetune(
                config.learning, inputs["policy"], resident, out, progress, inputs.get("demos")
            )
        worlds = partial(placed, config.placement, partial(practice_env, protocol), config.worlds)
    return finetune(config.learning, inputs["policy"], worlds, out, progress, inputs.get("demos"))
