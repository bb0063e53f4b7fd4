"""Runs recipes, with Prefect where it can be started.

- `flow`: the flow of a recipe, whose tasks are its stages.
- `recipe_run`: the stages of a recipe and their results, with and without Prefect.
- `reachable`: whether Prefect can run a flow here.
- `temporary_server`: the server of one run, where none is configured.
- `unread_output`: a run that outlives its worker.
- `lost_runs`: runs that nobody carries out any more.
- `stage_report`: log, progress and results of a stage on Prefect's web page.
- `pools`: a stage in another work pool.
- `ray_pool`: a stage on a node of a Ray cluster.
- `ray_worker`: what the node does for it.
- `approvals`: approvals on the page of a run, and answers given elsewhere.
- `approvals_page`: the page on which a browser answers approvals.
- `results_app`: the web application that serves results and approvals.
- `served_results`: addresses at which the files of a run are served.
- `registration`: work pools, deployments and automations on a Prefect server.
- `server`: a Prefect server with a worker and a server of results, in one command.
"""
