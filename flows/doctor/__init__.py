"""Checks whether this machine can run Handoff, and says what to do where it cannot.

- `check`: the result of one check.
- `graphics`: torch with CUDA, OpenGL and Vulkan.
"""
