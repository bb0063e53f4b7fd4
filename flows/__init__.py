"""Runs the pipelines, sessions and commands of Handoff; nothing else knows Prefect and Hydra.

Packages, each above those that follow it where it needs them:
- `recipes`: pipelines as files in `configs/`, and the graph of their stages.
- `stages`: one module per stage: from artifacts to the functions of the other packages.
- `hil`: human-in-the-loop sessions, from no data to a gated policy.
- `deployment`: policies at a table: that of the twin, or of an arm with a person beside it.
- `evaluation`: agents under a protocol, compared with one another.
- `session`: what sessions with a person share: environments, people, episodes, views.
- `reports`: summaries, pages, pictures, lineage.
- `runner`: stages as cached, locked processes, and what a terminal shows of them.
- `config`: files in `configs/` over the defaults of configuration classes.

Commands:
- `__main__`: the command line.
- `run`: a recipe as a Prefect flow.
- `deployments`: that flow, under the path that `prefect.yaml` names.
- `console`: a simulated arm to practise on, in a browser.
- `serve`: a policy behind a websocket.
- `record`: the small set of demonstrations that ships with Handoff.
- `profile_placement`: how fast each placement of a recipe's environments would be.
"""
