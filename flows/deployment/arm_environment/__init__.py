"""Provides an arm as an environment of one, for sessions in which a policy learns.

- `engine`: a simulated arm behind the robot's protocols, as an engine of `sim`.
- `environment`: the environment of a session, at an arm or without one.
"""
