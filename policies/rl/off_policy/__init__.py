"""Learns from replayed transitions.

- `config`: options of SAC and its variants; imports no torch.
- `sac`: SAC, RLPD and HIL-SERL.
- `sac_networks`: its weights.
- `fused_sac`: its updates without autograd.
- `sac_bc`: SAC guided by demonstrations.
- `gsde`: state-dependent exploration.
- `tanh_gaussian`: the actor.
- `exploration_noise`: noise per environment.
- `jsrl`: jump-start RL.
- `wsrl`: warm-start RL.
- `fast_td3_config`: options of FastTD3; imports no torch.
- `fast_td3`: FastTD3 and PQL.
- `online`: batches of online and offline data.
- `train`: RL from scratch in parallel environments.
"""
