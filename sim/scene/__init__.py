"""Builds scenes of the arm and observes them.

- `scene`: arm, gripper, table, lights and controllers.
- `view`: named positions and velocities as arrays.
- `cameras`: cameras and images.
- `randomize`: domain randomisation.
- `appearance`: displaced cameras, light and other visible changes of an episode.
- `clutter`: distractors on the table.
- `dynamics`: tuned parameters of the arm.
- `contact_cost`: the force of unwanted contacts as a cost.
"""
