"""Decides who controls the arm and what it is commanded, without network or clock.

- `arbiter`: who is in control, what the arm is commanded, and when it holds still.
- `arm_mode`: policy, person, hold or stop, and why.
- `people`: inputs and message rates of the people at the console.
- `labels`: the running episode and its label.
- `picture_watch`: whether the pages have recent pictures of every camera.
- `commands`: the command that the console sends to the robot's process.
- `bindings`: the map from keys, axes and buttons to actions.
"""
