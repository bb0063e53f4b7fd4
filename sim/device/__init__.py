"""Keeps environments on the device that simulates them.

- `arm`: the arm's tasks in mujoco-warp.
- `maniskill`: tasks of ManiSkill.
- `tracing`: a task's NumPy terms, traced for a device.
"""
