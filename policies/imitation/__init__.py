"""Pretrains policies from demonstrations.

- `config`: options of pretraining; imports no torch.
- `objective`: training setup, loss and validation loss for the training loop.
- `pretrain`: the stage's function.
"""
