"""Trains off-policy actor-critic learners from a replay buffer.

- `config`: options of SAC and its variants; imports no torch.
- `sac`: SAC, with RLPD and HIL-SERL as options.
- `sac_networks`: networks of SAC.
- `fused_sac`: SAC updates without autograd, on a CPU.
- `sac_bc`: SAC with a behaviour-cloning term.
- `gsde`: generalised state-dependent exploration (gSDE).
- `tanh_gaussian`: the tanh-Gaussian actor.
- `exploration_noise`: exploration noise per environment.
- `jsrl`: jump-start RL (JSRL).
- `wsrl`: warm-start RL (WSRL).
- `fast_td3_config`: options of FastTD3 and PQL; imports no torch.
- `fast_td3`: FastTD3 and PQL.
- `device_fast_td3`: FastTD3 and PQL that act on a device.
- `online`: the online training loop and its minibatches.
"""
