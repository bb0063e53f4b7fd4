"""Provides the flow under the import path that `prefect.yaml` names as its entrypoint,
`flows.deployments.handoff`."""

from flows.run import make_flow, prepare_prefect

prepare_prefect()
handoff = make_flow()
