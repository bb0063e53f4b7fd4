"""Evaluates and compares agents under a protocol.

- `config`: options of the stages that evaluate policies and search for their worst environments.
- `agents`: saved, exported and served policies, random agents, scripted experts.
- `dynamics`: tuned dynamics in the environments of a protocol.
- `families`: families of environments in the protocol of a training or a recording.
- `family_commands`: the commands `worst-case` and `evaluate-family`.
- `inference_time`: time of one observation.
- `robustness`: the command `robustness`.
- `sensitivity`: the command `sensitivity`.
- `pairs`: paired differences of successes over the same starts.
- `simulators`: success of policies in several simulators.
- `evaluate`: the commands `evaluate` and `compare`.
"""
