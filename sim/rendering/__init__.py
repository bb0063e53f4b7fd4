"""Renders episodes.

- `push_t`: push-T in 3-D or plan view.
- `replay`: recorded or imagined states in 3-D.
- `video`: video files.
"""
