"""Pretrains policies from demonstrations.

- `config`: options of pretraining; imports no torch.
- `objective`: data, loss and evaluation of a family for the training loop.
- `pretrain`: the stage's function.
"""
