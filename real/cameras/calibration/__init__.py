"""Calibrates cameras by views of a printed board, with OpenCV.

- `board`: the ChArUco board: its picture for printing, and its corners in a picture.
- `views`: chooses views of the board that differ.
- `intrinsics`: focal length, principal point and distortion.
- `hand_eye`: pose of a camera on the gripper, or beside the arm.
- `calibration_file`: the file that sessions take.
"""
