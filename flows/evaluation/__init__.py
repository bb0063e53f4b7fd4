"""Agents under a protocol, compared with one another.

- `config`: how a stage evaluates a policy.
- `agents`: saved and exported policies, random actions, scripted experts.
- `evaluate`: the commands `evaluate` and `compare`.
"""
