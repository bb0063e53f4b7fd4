"""Learns a world model from play and imagines rollouts with it.

- `config`: options and card; imports no torch.
- `model`: the recurrent state-space model.
- `train`: training and evaluation on held-out episodes.
- `imagined_env`: imagined rollouts as an environment.
"""
