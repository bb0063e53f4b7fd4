"""Records episodes in simulation.

- `rollouts`: successful rollouts of a policy.
- `play`: play for a world model.
- `simulated_operator`: an operator with delays and errors.
- `hard_negatives`: episodes that almost succeed.
"""
