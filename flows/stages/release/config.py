"""Defines the options of the stages that release a policy, as far as they are not those of the
packages that do the work."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated

from pydantic import Field

from flows.deployment.config import DeployConfig, DeployTaskConfig
from robots.config import Count, Positive, Seed, config

TableConfig = Annotated[DeployConfig | DeployTaskConfig, Field(discriminator="kind")]


@config
class DeployBundleConfig:
    """Deployment of a bundle to the twin."""

    table: TableConfig = field(default_factory=DeployConfig)
    """Table with the arm and its objects: push-T's, or that of a simulated task."""


@config
class OpenLoopConfig:
    """Comparison of a policy's actions with those of recorded episodes."""

    stride: Count = 1
    """Steps between two predictions."""
    seed: Seed = 0
    """Seed of the policy's noise and of the intervals' resampling."""
    denoising_steps: Count | None = None
    """Number of sampler steps; None takes the policy's own."""
    action_field: str | None = None
    """Field with the recorded actions, such as `action` of deployed episodes; None takes the field
    from which the policy learned."""
    device: str = "cpu"
    """Device of the policy: `cpu`, `cuda`, or `auto`."""
    examples: Count = 3
    """Number of episodes whose predictions are plotted."""
    max_error: Positive | None = None
    """Largest accepted error relative to the control's, above which the stage fails; None accepts
    any."""
