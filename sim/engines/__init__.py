"""Implements the simulation engines, one module each.

- `arm_engine`: base class of the arm's engines.
- `mujoco`: MuJoCo.
- `warp`: mujoco-warp.
- `warp_physics`: mujoco-warp's data and graphs on the device.
- `maniskill`: ManiSkill 3.
- `maniskill_task`: tasks and options of ManiSkill.
- `isaac_lab`: Isaac Lab.
- `gym`: Gymnasium environments.
- `gym_push_t`: gym-pusht.
- `gym_spaces`: Gymnasium spaces as fields.
- `gym_state`: exact save and restore.
- `opencv_substitute`: the functions of OpenCV that gym-pusht uses.
"""
