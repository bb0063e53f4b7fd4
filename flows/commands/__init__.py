"""Defines the commands of the program `handoff`; what they do is imported inside them.

- `app`: the program: parsing, errors, exit codes, `completion`.
- `parameters`: parameters that several commands share.
- `pipelines`: `plan`, `run`, `show`, `profile`, `server`, `register`.
- `planning`: prints a plan, with expected cost.
- `requirements`: what a recipe needs and this machine lacks.
- `catalog`: what there is, each with a phrase.
- `listing`: `list`.
- `completers`: the words that the Tab key completes.
- `new`: `new recipe`, `new task`, `new stage`.
- `lineage`: `explain`, `reproduce`, `fetch`, `gc`.
- `episodes`: `episodes info`, `ls`, `view`, `doctor`, `stats`, `import`, `delete`, `trim`,
  `relabel`, `merge`, `split`, `export`.
- `evaluation`: `evaluate`, `compare`, `gate`, `serve`, `rollouts`, `tune`.
- `sessions`: `record`, `hil`, `console`, `approve`, `deploy`, `clear-fault`.
- `releasing`: `keys`, `sign`, `verify`.
- `machine`: `doctor`, `camera board`, `camera calibrate`, `envs create`, `envs list`,
  `envs check`, `envs listen`.
"""
