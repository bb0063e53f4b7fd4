"""Runs recipes, with Prefect where it can be started.

- `flow`: the flow of a recipe, whose tasks are its stages.
- `recipe_run`: the stages of a recipe and their results, with and without Prefect.
- `reachable`: whether Prefect can run a flow here.
- `temporary_server`: the server of one run, where none is configured.
- `unread_output`: a run that outlives its worker.
- `stage_report`: log, progress and results of a stage on Prefect's web page.
- `pools`: a stage in another work pool.
- `ray_pool`: a stage on a node of a Ray cluster.
- `ray_worker`: what the node does for it.
- `approvals`: approvals on the page of a run, and answers given elsewhere.
- `served_results`: addresses at which the files of a run are served.
- `serving`: a Prefect server for a laptop or a lab.
"""
