"""Learns from rollouts by PPO and GRPO.

- `config`: options of losses, rollouts and groups; imports no torch.
- `ppo`: the learner.
- `ppo_loss`: the clipped loss and its variants.
- `advantages`: advantages of steps and of groups.
- `returns`: generalised advantage estimation and n-step returns.
- `rollout`: the table of a rollout.
- `minibatches`: minibatches by rows.
- `observations`: observations of a rollout, by kind.
- `value_head`: value heads on a backbone.
- `gaussian_actor`: a Gaussian policy.
- `diffusion_actor`: a denoising chain (DPPO).
- `flow_actor`: a flow made stochastic (Flow-SDE, Flow-Noise).
- `token_actor`: action tokens.
"""
