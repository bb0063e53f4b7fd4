"""Fine-tunes pretrained policies by reinforcement learning.

- `config`: options of all methods; imports no torch.
- `base`: default hooks of methods that keep no data.
- `finetune`: the resumable run and the interface of methods.
- `dppo`: DPPO of diffusion and flow policies.
- `best_of_n`: best-of-N by critics, and imitation of the best.
- `rl100`: RL-100, offline iterations and online PPO.
- `vla`: PPO and GRPO of vision-language-action policies.
- `offline_dataset`: demonstrations and rollouts as transitions.
- `collapse`: detection of collapsed runs.
"""
