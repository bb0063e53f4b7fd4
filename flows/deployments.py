"""Provides the flow under the import path that deployments name as their entrypoint,
`flows.deployments.handoff`."""

from flows.orchestration.flow import make_flow

handoff = make_flow()
