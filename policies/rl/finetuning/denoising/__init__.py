"""Fine-tunes diffusion and flow policies by PPO.

- `config`: options of the methods; imports no torch.
- `ppo_finetuning`: the run that the methods share: rollouts, updates and their state.
- `critic`: critics of the observations of a frozen policy.
- `dppo`: DPPO, PPO over denoising steps.
- `fpo`: FPO, PPO with ratios of flow-matching losses.
- `fpo_actor`: a flow policy with flow-matching losses in place of log-probabilities.
- `reinflow`: ReinFlow, PPO over a flow with learned noise.
- `reinflow_actor`: a flow policy whose steps have learned noise.
"""
