"""Evaluates and compares agents under a protocol.

- `config`: options of the stages `evaluate` and `robustness`.
- `agents`: saved, exported and served policies, random agents, scripted experts.
- `dynamics`: tuned dynamics in the environments of a protocol.
- `inference_time`: time of one observation.
- `robustness`: the command `robustness`.
- `evaluate`: the commands `evaluate` and `compare`.
"""
