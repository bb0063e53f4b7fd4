"""Holds a module per policy family.

- `diffusion`: diffusion and flow-matching policies.
- `act`: action chunking with transformers.
- `beso`: goal- and language-conditioned score-based diffusion.
- `behaviour_cloning`: regression and Gaussian mixtures.
- `vla`: flow-matching vision-language-action policies.
- `token_vla`: vision-language-action policies that predict action tokens.
- `vision_language`: what both share.
- `action_tokens`: actions as tokens.
- `lora`: low-rank adapters.
- `rl_actor`: the actor of an off-policy learner as a policy.
"""
