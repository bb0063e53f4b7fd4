"""Defines the stages that make episodes.

- `config`: options of these stages.
- `ingest`: converts demonstrations to an episode store.
- `scripted`: records demonstrations by a task's scripted expert.
- `demonstrate`: records demonstrations by a person or a simulated operator.
- `play`: records play data for a world model.
- `relabel`: copies episodes with another reward and success.
- `rollouts`: records successful episodes of a policy.
- `examine`: looks for faults in episodes.
- `filter`: keeps the episodes that meet conditions.
- `split`: writes one part of the episodes.
- `merge`: merges several stores into one.
- `excite`: records exciting motions of a simulated arm.
- `excite_arm`: records them at the twin, behind the robot's network protocol.
"""
