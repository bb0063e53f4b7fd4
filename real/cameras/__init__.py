"""Reads real cameras: for the pages of the console, and for recordings.

- `camera`: an open camera, and its pictures with the times of their capture.
- `camera_process`: a process per camera, which opens it again when it was lost.
- `newest_picture`: the newest picture of a camera, in memory that two processes share.
"""
