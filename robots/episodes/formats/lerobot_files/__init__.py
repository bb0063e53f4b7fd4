"""Reads the files of LeRobot data sets.

- `lerobot_metadata`: the folder `meta` of all versions, and the places of data and videos.
- `lerobot_features`: the entries of `features`: names, shapes, depth and units.
- `lerobot_video`: pictures of videos at exact times.
"""
