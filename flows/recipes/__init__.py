"""Builds pipelines from recipes, which are files in `configs/`.

- `config`: all options of a recipe.
- `compose`: composes a recipe with overrides and option groups.
- `pipeline`: the graph of stages.
"""
