"""Repeats claims of the results: a recipe, learning seeds, and figures with bars.

- `claim`: a claim as a YAML file in `configs/claims/`.
- `outcomes`: every episode of the evaluations behind a claim, as a small JSON file.
- `comparison`: figures of repeated outcomes beside those of recorded ones.
- `repeat`: runs the recipe of a claim with its seeds, and writes the comparison.
- `due`: repeats as many claims as fit in a time, the longest unrepeated ones first.
"""
