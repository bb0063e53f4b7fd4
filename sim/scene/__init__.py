"""Builds scenes of the arm and observes them.

- `scene`: bodies, sensors and starts.
- `view`: positions, velocities and contacts as arrays.
- `cameras`: cameras and images.
- `randomize`: domain randomisation.
"""
