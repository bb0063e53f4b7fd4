"""Learns a world model from play.

- `config`: options and card; imports no torch.
- `model`: the recurrent state-space model.
- `train`: training and held-out errors.
- `imagined_env`: imagined rollouts as an environment.
"""
