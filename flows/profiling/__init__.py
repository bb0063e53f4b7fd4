"""Predicts how fast a recipe trains in simulation.

- `command`: `handoff profile`.
- `placement`: the placements of fine-tuning environments.
- `worlds`: the number of environments of RL from scratch.
"""
