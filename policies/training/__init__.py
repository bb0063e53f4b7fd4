"""Trains any network in one loop that resumes after it was killed.

- `config`: options of all training; imports no torch.
- `loop`: the loop.
- `resumable_run`: state, curve and processor time of a run on disk.
- `optimizer`: optimiser, schedule and running mean of the weights.
- `distributed`: several processes through accelerate.
- `preflight`: speed and memory, measured before training.
- `health`: frozen, dead and diverging parameters.
- `loggers`: loss curves as JSON lines, TensorBoard and W&B.
- `plots`: curves and samples as pictures.
"""
