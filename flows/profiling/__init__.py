"""Predicts how fast a recipe trains in simulation.

- `command`: `handoff profile`.
- `placement`: the placements of fine-tuning environments.
- `num_envs`: the number of environments of RL from scratch.
"""
