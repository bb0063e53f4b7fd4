"""Defines the networks and optimisers of the RL learners.

- `config`: layers of MLPs and image encoders; imports no torch.
- `ensemble`: an ensemble of MLPs in one module.
- `critics`: Bellman targets and losses of Q-functions.
- `distributional`: categorical distributions of values (C51) and rewards (two-hot).
- `image_encoder`: SERL's image encoders.
- `fused_mlp`: fused forward and backward passes of MLP ensembles on a CPU.
- `adam`: Adam as one fused kernel call.
- `running_normaliser`: observations normalised by their running mean and deviation.
- `learner_state`: checkpoint state of networks and optimisers.
"""
