"""Builds Handoff's own tasks as manager-based tasks of Isaac Lab, on the Newton back end.

Its modules run where Isaac Lab is, on an environment server. They take scene, initial states,
observations, rewards, success and failure from `sim.tasks`, so that a task is stated once.

- `usd`: converts the arm and the bodies of a task to USD.
- `scene`: the scene of a task as a configuration of Isaac Lab.
- `state`: generalised positions and velocities of a scene, in the order of the MuJoCo model.
- `arm`: targets, goals and terms of the arm.
- `mdp`: terms of Isaac Lab's managers that evaluate those of a task.
- `environment`: the environment, its configuration, and its registration with Gymnasium.
"""
