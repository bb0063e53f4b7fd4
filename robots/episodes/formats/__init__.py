"""Reads published formats of demonstrations, a module per format.

- `pusht`: the push-T replay buffer, converted to metres.
"""
