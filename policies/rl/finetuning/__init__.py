"""Fine-tunes pretrained policies by reinforcement learning.

- `config`: options of all methods; imports no torch.
- `base`: what a method must answer, with defaults.
- `finetune`: the resumable run.
- `dppo`: DPPO.
- `best_of_n`: best of N by critics.
- `rl100`: RL-100.
- `vla`: PPO and GRPO of vision-language-action policies.
- `offline_dataset`: demonstrations and rollouts as transitions.
- `collapse`: detection of collapsed runs.
"""
