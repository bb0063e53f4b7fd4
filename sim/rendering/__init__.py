"""Draws episodes.

- `push_t`: push-T in plan view.
- `replay`: recorded episodes in 3-D.
- `video`: videos.
"""
