"""Trains policies from recorded transitions, without an environment.

- `config`: options; imports no torch.
- `train_offline`: trains a policy on a recorded store by any of the algorithms.
- `train_diffusion`: trains diffusion policies, by EDP and by offline PPO.
- `recorded`: recorded episodes with rewards, as training data.
- `offline_dataset`: demonstrations and rollouts as transitions of chunks.
- `saved_learner`: files of a learner, from which online RL goes on.
- `iql`: implicit Q-learning (IQL), XQL and f-DVL.
- `calql`: Cal-QL and CQL.
- `edp`: efficient diffusion policies (EDP).
- `value_losses`: expectile, Gumbel and f-divergence losses of V.
- `dynamics_ensemble`: an ensemble of learned dynamics models.
- `offline_ppo`: the offline PPO of RL-100.
- `train`: the offline training loop.
"""
