"""Learns from recorded transitions alone.

- `config`: options; imports no torch.
- `iql`: implicit Q-learning.
- `calql`: Cal-QL and CQL.
- `value_losses`: expectile, Gumbel and f-divergence losses of values.
- `dynamics_ensemble`: an ensemble of dynamics.
- `offline_ppo`: the offline PPO of RL-100.
- `train`: the training loop.
"""
