"""Builds scenes of the arm and observes them.

- `scene`: arm, gripper, table, lights and controllers.
- `view`: named positions and velocities as arrays.
- `cameras`: cameras and images.
- `warp_cameras`: images of mujoco-warp's environments, rendered on their device.
- `randomize`: domain randomisation.
- `model_draws`: its draws in the fields of the model, for environments of mujoco-warp.
- `appearance`: displaced cameras, light and other visible changes of an episode.
- `clutter`: distractors on the table.
- `dynamics`: tuned parameters of the arm.
- `deviations`: values in which a twin differs from the model.
- `contact_cost`: the force of unwanted contacts as a cost.
"""
