"""Implements the simulation engines, one module each.

- `arm_engine`: base class of the arm's engines.
- `observed_arm`: an arm's environments whose state is read from observations.
- `mujoco`: MuJoCo.
- `warp`: mujoco-warp.
- `warp_physics`: mujoco-warp's data and graphs on the device.
- `maniskill`: ManiSkill 3.
- `maniskill_task`: tasks and options of ManiSkill.
- `maniskill_arm`: ManiSkill's scenes with a task's observations, actions and expert.
- `isaac_lab`: Isaac Lab.
- `gym`: Gymnasium environments.
- `gym_push_t`: gym-pusht.
- `gym_spaces`: Gymnasium spaces as fields.
- `gym_state`: exact save and restore.
- `meta_world`: the tasks of Meta-World, for an environment server.
- `opencv_substitute`: the functions of OpenCV that gym-pusht uses.
"""
