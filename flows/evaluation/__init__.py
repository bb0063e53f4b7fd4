"""Evaluates and compares agents under a protocol.

- `config`: options of the stages `evaluate`, `robustness`, `sensitivity`, `compare_simulators`.
- `agents`: saved, exported and served policies, random agents, scripted experts.
- `dynamics`: tuned dynamics in the environments of a protocol.
- `inference_time`: time of one observation.
- `robustness`: the command `robustness`.
- `sensitivity`: the command `sensitivity`.
- `pairs`: paired differences of successes over the same starts.
- `simulators`: success of policies in several simulators.
- `evaluate`: the commands `evaluate` and `compare`.
"""
