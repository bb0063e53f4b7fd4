"""Defines the options of the stages that release a policy, as far as they are not those of the
packages that do the work."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated

from pydantic import Field

from flows.deployment.config import DeployConfig, DeployTaskConfig
from robots.config import config

TableConfig = Annotated[DeployConfig | DeployTaskConfig, Field(discriminator="kind")]


@config
class DeployBundleConfig:
    """Deployment of a bundle to the twin."""

    table: TableConfig = field(default_factory=DeployConfig)
    """Table with the arm and its objects: push-T's, or that of a simulated task."""
