"""Evaluates and compares agents under a protocol.

- `config`: options of the stage `evaluate`.
- `agents`: saved and exported policies, random agents, scripted experts.
- `evaluate`: the commands `evaluate` and `compare`.
"""
