"""Implements the policy families, one per module.

- `diffusion`: diffusion and flow-matching policies.
- `act`: action chunking with transformers.
- `beso`: goal- and language-conditioned score-based diffusion.
- `behaviour_cloning`: regression and Gaussian mixtures.
- `vla`: flow-matching vision-language-action policies.
- `vla_checkpoint`: released weights as the start of a `vla`.
- `smolvla`: those of SmolVLA.
- `pi0`: those of pi0.
- `token_vla`: vision-language-action policies that predict action tokens.
- `vision_language`: shared base of the vision-language-action policies.
- `action_tokens`: actions as tokens.
- `lora`: low-rank adapters.
- `rl_actor`: the actor of an off-policy learner as a policy.
- `coarse_to_fine`: the critic of CQN-AS as a policy.
"""
