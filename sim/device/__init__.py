"""Keeps environments on the device that simulates them.

- `arm`: the arm's tasks in mujoco-warp.
- `initial_states`: draws initial states of the arm's tasks on the host.
- `maniskill`: tasks of ManiSkill.
- `tracing`: a task's NumPy terms, traced for a device.
"""
