"""Reads published formats of demonstrations, one module each.

- `pusht`: the push-T replay buffer, converted to metres.
"""
