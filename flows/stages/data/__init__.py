"""Defines the stages that make episodes, and draw the environments in which they are made.

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
- `draw_family`: draws the members of a family of environments.
- `excite`: records exciting motions of a simulated arm.
- `excite_arm`: records them at the twin, behind the robot's network protocol.
"""
