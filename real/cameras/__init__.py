"""Reads real cameras: for the pages of the console, for policies and for recordings.

- `config`: the options of a camera.
- `camera`: an open camera, and its pictures with the times of their capture.
- `realsense`: the colour pictures of a RealSense camera.
- `v4l2_controls`: locks exposure, white balance and focus of a V4L2 camera.
- `picture_size`: cuts and resizes pictures.
- `calibration`: calibrates cameras by views of a printed board.
- `camera_process`: a process per camera, which opens it again when it was lost.
- `newest_picture`: the newest picture of a camera, in memory that two processes share.
"""
