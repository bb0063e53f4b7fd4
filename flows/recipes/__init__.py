"""Builds the stages of recipes, YAML files with graphs of stages.

- `recipe`: reads a file, with those that it extends and with overrides.
- `graph`: checks the wiring, expands matrices and builds the options of every stage.
- `matrix`: replaces references to values of a matrix.
- `observed`: checks that policies observe fields which demonstrations and environments have.
- `environments`: checks that engines read the options of the environments of protocols.
- `formulas`: checks that formulas of temporal logic name numbers that are observed.
- `pictures`: checks what image encoders see of the pictures of data sets.
- `seeds`: shifts the seeds of a stage.
"""
