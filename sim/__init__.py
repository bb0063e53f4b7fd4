"""Simulates robots and tasks behind one vectorised interface.

- `make`: environments from a configuration.
- `engine`: the interface of a simulation engine.
- `vec_env`: N environments of a task over an engine.
- `parallel`: jobs split among processes.
- `episode_streams`: random streams of an episode.
- `phrasings`: the same instructions in other words.
- `ignored_options`: options that an engine would ignore.
- `ignore_success`: episodes that continue after success.
- `specified_reward`: a reward from specifications in signal temporal logic.
- `engines`: MuJoCo, mujoco-warp, ManiSkill, Isaac Lab, Gymnasium.
- `isaac`: the tasks in Isaac Lab.
- `device`: environments that stay on a device.
- `scene`: scenes, cameras, randomisation.
- `tasks`: the tasks on the arm.
- `evaluation`: protocols, intervals and comparisons.
- `sensitivity`: success as a function of parameters of the environments.
- `environment_families`: environments that differ in parameters, and the worst of them.
- `identification`: real-to-sim tuning.
- `recording`: rollouts, play and simulated operators.
- `rendering`: images and videos.
- `twin`: a simulated robot behind the robot's own network protocol.
- `processes`: environments in separate processes.
- `servers`: engines in other virtual environments and on other machines.
"""
