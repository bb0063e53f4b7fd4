"""Checks, before anything runs, that the engine of a stage's environments reads their options."""

from __future__ import annotations

from flows.runner.stage import Stage
from policies.rl.finetuning.config import FinetuneConfig
from policies.rl.from_scratch.config import FromScratchConfig
from robots.errors import HandoffError
from sim.evaluation.protocol import Protocol


def check_options(stage: Stage) -> None:
    """Checks the options of the environments that a stage's protocol prescribes.

    Args:
        stage: the stage.

    Raises:
        HandoffError: an unknown option, a value out of its range, an option that the engine would
            ignore, or environments that stay on a device for a stage that does not train there.
    """
    protocol = getattr(stage.config, "protocol", None)
    # Imagined rollouts need the protocol's time limit alone.
    if not isinstance(protocol, Protocol) or "world_model" in stage.inputs:
        return
    from sim.evaluation.evaluate import check_environments

    trains = isinstance(stage.config, FinetuneConfig | FromScratchConfig)
    try:
        check_environments(protocol, on_device=trains)
    except HandoffError as error:
        raise HandoffError(f"stage {stage.name}: {error}") from None
