"""Runs the pipelines, sessions and commands of Handoff; nothing else knows Prefect and Hydra.

Packages, each above those that follow it where it needs them:
- `commands`: the commands of the program `handoff`.
- `doctor`: checks of this machine, with what to do.
- `claims`: claims of the results, repeated and compared with what is recorded.
- `orchestration`: recipes as Prefect flows, and a server with workers.
- `recipes`: pipelines as YAML files, and the graph of their stages.
- `stages`: kinds of stages, which pass artifacts to functions of the other packages.
- `correction`: the actor and the learner of RL with corrections.
- `deployment`: policies on the twin, or on an arm supervised by a person.
- `evaluation`: agents evaluated and compared under a protocol.
- `session`: environments, operators, episodes and views of sessions with a person.
- `review`: recorded episodes, looked at and labelled in a browser.
- `reports`: summaries, HTML pages, plots, lineage.
- `virtual_envs`: virtual environments of engines that cannot be installed beside Handoff.
- `storage`: runs on S3-compatible storage, with a local working copy.
- `runner`: stages as cached, locked processes, and their progress on a terminal.
- `config`: YAML files, named options and overrides over the defaults of configuration classes.
- `artifacts`: kinds of artifacts, which the stages' signatures name.

Commands:
- `__main__`: the entry of the command line.
- `run`: a recipe from a terminal, as a Prefect flow.
- `attended`: a recipe in this terminal, with a person.
- `approve`: a person's answer to the question that a run waits for.
- `releasing`: keys, and signed releases of policies.
- `deployments`: the Prefect flow, importable by the name that deployments state.
- `console`: a simulated arm controlled from a browser.
- `serve`: a policy server on a websocket.
- `episode_weights`: weights of episodes, and of the stores of a mixture.
- `datasets`: data sets of any format, imported, edited and exported.
- `garbage`: deletes artifacts that no run refers to.
- `record`: records the small set of demonstrations that ships with Handoff.
- `tune`: tunes the simulated arm to recorded motions.
- `profiling`: predicts how fast a recipe trains in simulation.
"""
