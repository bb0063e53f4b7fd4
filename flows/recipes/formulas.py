"""Checks, before anything runs, that formulas of signal temporal logic name numbers which are
observed: those that reward an environment, and those that are measured at the twin.

At the twin they are over what the policy observes. Where that is not known from the options, as of
a policy that takes all fields of its demonstrations, the policy itself is the judge.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flows.deployment.config import DeployConfig, DeployTaskConfig
from flows.recipes.observed import BLOCKS, POLICY_INPUTS, PUSH_T, recorded_fields
from flows.runner.stage import Stage
from policies.rl.from_scratch.config import FromScratchConfig
from robots.errors import HandoffError
from robots.spec import FieldSpec
from robots.specifications.parser import parse
from robots.specifications.quantities import resolve
from sim.evaluation.protocol import Protocol, check_specified_reward
from sim.make import find_task, is_task

ANY_RATE = 1e6
"""Rate at which every interval contains a step [Hz]; that of the policy is known at the twin."""


def check_formulas(stage: Stage) -> None:
    """Checks the formulas that a stage is rewarded by or measures at the twin.

    Args:
        stage: the stage.

    Raises:
        HandoffError: a formula that is none, or that names a number which is not observed.
    """
    for block in (stage.config, getattr(stage.config, "algorithm", None)):
        protocol = getattr(block, "protocol", None)
        if isinstance(protocol, Protocol):
            check_specified_reward(protocol)
    table = getattr(stage.config, "table", None)
    bundle = stage.inputs.get("bundle")
    if not isinstance(table, DeployConfig | DeployTaskConfig) or bundle is None:
        return
    if not table.loop.specifications:
        return
    fields = _observed_numbers(bundle, PUSH_T if isinstance(table, DeployConfig) else "")
    for name, text in table.loop.specifications.items():
        formula = parse(text, name)
        if fields is None:
            continue
        try:
            resolve(formula, fields, ANY_RATE, name)
        except HandoffError as error:
            raise HandoffError(
                f"stage {stage.name}: {error} The formulas of table.loop are over what the policy observes."
            ) from None


def _observed_numbers(bundle: Stage, board: str) -> Mapping[str, FieldSpec] | None:
    """The numbers that the policy of a bundle observes; None if the options do not tell.

    Args:
        bundle: the stage that exports it.
        board: task of the table, empty if it is that of the policy.
    """
    found = _policy_fields(bundle)
    if found is None:
        return None
    names, trained = found
    task = board or _task_of(trained)
    if not is_task(task):
        return None
    specs = {name: term.spec for name, term in find_task(task).observations.items()}
    if not names or not set(names) <= specs.keys():
        # All fields, a pattern, or fields of other environments.
        return None
    return {name: specs[name] for name in names}


def _policy_fields(stage: Stage) -> tuple[tuple[str, ...], Stage] | None:
    """The fields in the options of the stage whose policy a stage has, and that stage."""
    if isinstance(stage.config, FromScratchConfig):
        return stage.config.fields, stage
    for path in BLOCKS:
        block: Any = stage.config
        for key in path.split("."):
            block = getattr(block, key, None)
        if hasattr(block, "observation_fields"):
            return tuple(block.observation_fields), stage
    source = next((stage.inputs[name] for name in POLICY_INPUTS if name in stage.inputs), None)
    return None if source is None else _policy_fields(source)


def _task_of(stage: Stage) -> str:
    """The task in which the policy of a stage was trained; empty if it is not known."""
    demos = stage.inputs.get("demos")
    recorded = None if demos is None else recorded_fields(demos, data=False)
    if recorded is not None and recorded.task:
        return recorded.task
    protocol = getattr(stage.config, "protocol", None)
    return protocol.task if isinstance(protocol, Protocol) and protocol.robot else ""
