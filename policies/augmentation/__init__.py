"""Augments pictures in training, so that policies tolerate other cameras and light.

- `config`: options; imports no torch.
- `images`: shift, change of the camera's pose, and colour jitter of batches.
"""
