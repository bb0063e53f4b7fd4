"""The flow under the name that `prefect.yaml` deploys: `flows/deployments.py:handoff`."""

from flows.run import make_flow, prepare_prefect

prepare_prefect()
handoff = make_flow()
