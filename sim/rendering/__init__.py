"""Renders episodes, and the pictures of simulated cameras.

- `board_picture`: the push-T board from above, as gym-pusht draws it.
- `camera_clock`: when a camera captures its pictures, and when they arrive.
- `push_t`: push-T in 3-D or plan view.
- `replay`: recorded or imagined states in 3-D.
- `scene_renderer`: a process that renders states of a task's scene.
- `video`: video files.
"""
