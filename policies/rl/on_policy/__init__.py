"""Trains policies on their own rollouts by PPO and GRPO.

- `config`: options of losses, rollouts and groups; imports no torch.
- `ppo`: the update of actor and critic.
- `ppo_loss`: the clipped loss and its variants.
- `advantages`: advantages of decisions, actions and groups.
- `returns`: generalised advantage estimation and n-step returns.
- `rollout`: rollouts and tables of rows with advantages.
- `minibatches`: shuffled minibatches over all workers.
- `observations`: a policy's inputs from an environment's observations.
- `value_head`: value heads on hidden states.
- `gaussian_actor`: a Gaussian policy.
- `diffusion_actor`: a denoising chain (DPPO).
- `flow_actor`: a flow made stochastic (Flow-SDE, Flow-Noise).
- `learned_noise`: likelihoods of flows with learned noise.
- `token_actor`: action tokens.
"""
