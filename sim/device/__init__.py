"""Keeps environments on the device that simulates them.

- `arm`: the arm's tasks in mujoco-warp.
- `maniskill`: ManiSkill.
- `tracing`: NumPy terms of a task, compiled for a device.
"""
