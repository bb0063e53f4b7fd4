"""Serves a laptop or a lab: Prefect's server with workers, deployments, results and approvals.

- `server`: a Prefect server with a worker and a server of results, in one command.
- `registration`: work pools, deployments and automations on a Prefect server.
- `lost_runs`: runs that nobody carries out any more.
- `results_app`: the web application that serves results and approvals.
- `approvals_page`: the page on which a browser answers approvals.
"""
