"""Trains policies from recorded transitions, without an environment.

- `config`: options; imports no torch.
- `iql`: implicit Q-learning (IQL), with XQL and f-DVL as options.
- `calql`: Cal-QL and CQL.
- `value_losses`: expectile, Gumbel and f-divergence losses of V.
- `dynamics_ensemble`: an ensemble of learned dynamics models.
- `offline_ppo`: the offline PPO of RL-100.
- `train`: the offline training loop.
"""
