"""Evaluates and compares agents under a protocol.

- `config`: options of the stage `evaluate`.
- `agents`: saved, exported and served policies, random agents, scripted experts.
- `dynamics`: tuned dynamics in the environments of a protocol.
- `evaluate`: the commands `evaluate` and `compare`.
"""
