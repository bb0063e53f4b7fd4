"""Stage `open_loop`: compares a policy's actions with those of episodes that were held out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from flows.artifacts import Episodes, OpenLoop, Output, Policy
from flows.stages.release.config import OpenLoopConfig
from robots.errors import HandoffError
from robots.interfaces import Progress

TELEMETRY = ("report.html", "*.png")


def run(
    config: OpenLoopConfig,
    out: Path,
    progress: Progress,
    *,
    policy: Policy,
    episodes: Episodes,
) -> Output[OpenLoop]:
    """Predicts a chunk at every step of `episodes`, and writes its errors, those of repeating the
    last action, and `report.html` to `out`. An interrupted attempt restarts.

    Raises:
        HandoffError: episodes without a field of the policy, or an error above `max_error`.
    """
    from flows.reports.open_loop import summarize, write_open_loop
    from policies.checkpoint import read_card
    from policies.imitation.open_loop import open_loop_errors
    from policies.load import load_policy
    from policies.training.loop import resolve_device

    card = read_card(policy)
    if config.action_field is not None:
        card = replace(card, model=replace(card.model, action_field=config.action_field))
    device = str(resolve_device(config.device))
    errors = open_loop_errors(
        load_policy(policy, config.denoising_steps, device),
        card,
        episodes,
        progress,
        stride=config.stride,
        seed=config.seed,
        examples=config.examples,
    )
    metrics = summarize(errors, card, config.seed)
    write_open_loop(errors, metrics, card, out)
    ratio = metrics["relative"]["mean"]
    if config.max_error is not None and ratio > config.max_error:
        raise HandoffError(
            f"open_loop: the error is {ratio:.2f} of that of repeating the last action, the limit is "
            f"{config.max_error:g} (open_loop.max_error). Was the policy trained on these fields and this robot?"
        )
    return Output(metrics)
