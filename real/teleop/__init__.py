"""Lets a person take an arm over with a device at the computer.

- `takeover`: takeovers and actions from the input of any device.
- `keyboard`: a person at the keys of a terminal.
- `spacemouse`: a person with a SpaceMouse.
- `terminal`: key presses of a terminal, and detection of held keys.
"""
