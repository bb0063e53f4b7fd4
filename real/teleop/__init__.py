"""Lets a person take an arm over with a device at the computer.

- `takeover`: from the input of a hand to takeovers and actions.
- `keyboard`: a person at the keys of a terminal.
- `spacemouse`: a person with a SpaceMouse.
- `terminal`: key presses of a terminal, and which keys are held.
"""
