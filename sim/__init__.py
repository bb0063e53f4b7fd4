"""Simulates robots and tasks behind one vectorised interface.

- `make`: environments from a configuration.
- `engine`: what a simulation engine must do.
- `vec_env`: N environments of a task over an engine.
- `parallel`: rows split among processes.
- `episode_streams`: recorded streams of an episode.
- `ignore_success`: environments that go on after success.
- `engines`: MuJoCo, mujoco-warp, ManiSkill, Isaac Lab, Gymnasium.
- `device`: environments that stay on a device.
- `scene`: scenes, cameras, randomisation.
- `tasks`: the tasks on the arm.
- `evaluation`: protocols, intervals and comparisons.
- `identification`: real-to-sim tuning.
- `recording`: rollouts, play and simulated operators.
- `rendering`: images and videos.
- `twin`: a robot that speaks its own network protocol.
- `processes`: environments in processes of their own.
"""
