"""Checks whether this machine can run Handoff, and says what to do where it cannot.

- `check`: the result of one check.
- `examine`: all checks in their order.
- `report`: results as lines or as JSON.
- `packages`: Python, installed packages and extras.
- `graphics`: torch with CUDA, OpenGL and Vulkan.
- `realtime`: kernel, limits and governor for an arm's 1 kHz loop.
- `latency`: a histogram of a loop that wakes up every millisecond.
- `capacity`: disk, memory and the user's cache folder.
- `ports`: TCP ports of Handoff and Prefect.
- `clock`: synchronisation of this machine's clock.
- `prefect_server`: the configured Prefect server.
- `recipes`: recipes that cannot be resolved.
- `variables`: environment variables that nothing reads.
- `franka`: franky, and the arm that it would control.
"""
