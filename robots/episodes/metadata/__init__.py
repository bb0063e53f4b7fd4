"""Defines what a recorder states about an episode: entries of its metadata, and capture times.

- `episode_metadata`: origin, people and end of an episode.
- `labels`: names and types of the labels that a person gives afterwards.
- `camera_calibration`: intrinsics and pose of a camera.
- `summary`: when, by whom and where the episodes of a store were recorded.
- `capture_times`: fields with the capture time of every picture.
"""
