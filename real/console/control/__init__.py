"""Decides who controls the arm and what it is commanded, without network or clock.

- `arbiter`: who is in control, what the arm is commanded, and when it holds still.
- `arm_mode`: policy, person, home, limp, hold or stop, and why.
- `people`: the people at the console, who of them is in control, inputs and message rates.
- `labels`: the running episode and its label.
- `reset_offer`: what is offered between two episodes.
- `instructions`: what a person tells a policy that takes instructions.
- `picture_watch`: whether the pages have recent pictures of every camera.
- `commands`: the command that the console sends to the robot's process.
- `page_spacemouse`: a SpaceMouse that a page reads.
- `bindings`: the map from keys, axes and buttons to actions.
"""
