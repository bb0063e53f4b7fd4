"""Runs released policies on a real arm, with a person beside it; needs no torch and no simulator.

- `arm`: the protocol of an arm: its state, its targets and its faults.
- `clock`: clocks of robot time.
- `franka`: a Franka arm and its gripper through franky.
- `cameras`: real cameras, for pages and recordings.
- `deploy`: the control loop, its limits, and the release gate.
- `hil`: the actor of human-in-the-loop training.
- `hints`: hints to a person when a policy is likely to fail.
- `console`: takeovers and labels in a browser.
- `teleop`: takeovers by keyboard and SpaceMouse.
"""
