"""Defines networks and optimisers of reinforcement learning.

- `config`: sizes of networks; imports no torch.
- `ensemble`: an ensemble of MLPs as one module.
- `critics`: targets and losses of Q-functions.
- `distributional`: categorical returns.
- `image_encoder`: SERL's image encoders.
- `fused_mlp`: forward and backward passes written by hand.
- `adam`: Adam in one fused call.
- `learner_state`: weights and optimisers as a state.
"""
