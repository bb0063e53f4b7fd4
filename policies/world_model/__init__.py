"""Learns a world model from play and imagines rollouts with it.

- `config`: options and card; imports no torch.
- `model`: the recurrent state-space model.
- `ensemble`: several models of the same play, and their disagreement.
- `play`: recorded play and its held-out episodes.
- `train`: training.
- `held_out`: evaluation on held-out episodes.
- `imagined_env`: imagined rollouts as an environment.
"""
