"""Recipes: what a pipeline does, as a file in `configs/`.

- `config`: everything that the run of a recipe can be told.
- `compose`: a recipe with overrides and the groups that it may choose from.
- `pipeline`: the graph of its stages.
"""
