"""Trains networks in one resumable loop.

- `config`: options of all training; imports no torch.
- `loop`: the loop.
- `resumable_run`: state, curve and CPU time of a run on disk.
- `members`: members of an ensemble that are trained one after the other.
- `optimizer`: optimiser, schedule and running mean of the weights.
- `distributed`: several processes through accelerate.
- `batch_workers`: batches, decoded ahead in worker processes.
- `batch_wait`: fraction of the time in which a training waits for batches.
- `preflight`: speed and memory, measured before training.
- `health`: detection of frozen, gradient-free and diverging parameters.
- `loggers`: loss curves as JSON lines, TensorBoard and W&B.
- `plots`: plots of curves and samples.
"""
