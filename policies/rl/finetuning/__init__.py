"""Fine-tunes pretrained policies by reinforcement learning.

- `config`: options of all methods; imports no torch.
- `method`: the interface of methods, and what they are made from.
- `base`: base of the options, and default hooks of methods that keep no data.
- `finetune`: the resumable run.
- `denoising`: DPPO, FPO and ReinFlow, PPO of diffusion and flow policies.
- `chunk_selection`: the choice among sampled chunks by value, and imitation of the choices.
- `demonstration_selection`: the same with demonstrations as offline data.
- `chunk_replay`: visited states with sampled chunks, and the transitions between them.
- `best_of_n`: best-of-N by critics, and imitation of the best.
- `expo`: EXPO, a learned edit of the sampled chunks.
- `q_chunking`: Q-chunking, a policy of all recorded chunks and a choice by value.
- `frozen_policy`: the run of methods that learn an actor beside a frozen policy.
- `rl_token`: RL tokens, an actor that refines the chunks of a frozen policy.
- `dsrl`: DSRL, SAC on the initial noise of a frozen policy's sampler.
- `rl100`: RL-100, offline iterations and online PPO.
- `vla`: PPO and GRPO of vision-language-action policies.
- `collapse`: detection of collapsed runs.
"""
