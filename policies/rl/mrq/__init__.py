"""Trains policies by MR.Q: off-policy RL whose inputs are embeddings that predict what follows.

- `config`: options of MR.Q; imports no torch.
- `networks`: encoders, values and policy.
- `learner`: losses and updates.
- `updates`: the order of updates on a prioritised replay buffer.
"""
