"""Holds a module per simulation engine.

- `arm_engine`: what engines of the arm share.
- `mujoco`: MuJoCo.
- `warp`: mujoco-warp.
- `warp_physics`: its kernels and graphs.
- `maniskill`: ManiSkill 3.
- `maniskill_task`: its tasks and options.
- `isaac_lab`: Isaac Lab.
- `gym`: Gymnasium environments.
- `gym_push_t`: gym-pusht.
- `gym_spaces`: Gymnasium spaces as fields.
- `gym_state`: exact save and restore.
- `opencv_substitute`: the functions of OpenCV that gym-pusht draws with.
"""
