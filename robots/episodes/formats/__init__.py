"""Reads published formats of demonstrations, one module each.

- `pusht`: the push-T replay buffer, converted to metres.
- `zarr_v2`: checks that reading an array from outside runs no code.
"""
