"""The words that every other package shares, in NumPy and the standard library.

- `config`: configuration classes that refuse unknown keys by their path.
- `errors`: the error that reaches a person as one clear line.
- `extras`: the extra that brings a missing package.
- `interfaces`: the protocols through which learning, environments and hardware meet.
- `spec`: named arrays: shape, dtype, unit and frame.
- `contract`: all that a robot process must know of an exported policy.
- `success`: success probabilities, and the event that ends an episode.
- `proportions`: confidence intervals of a proportion.
- `seed_ranges`: the seeds of episodes, divided among their uses.
- `code_version`: a digest of a module's code and of all that it can reach.
- `processes`: child processes that end with their parent.
- `signals`: SIGTERM and SIGHUP as exceptions.
- `html_page`: the style of every HTML page.
- `franka`: the robots: kinematics, limits, masses and gripper.
- `control`: action spaces, impedance and gripper commands.
- `episodes`: the episode store, and the formats of demonstrations.
- `language`: sentences as arrays and as tokens.
- `storage`: files that survive a crash.
- `wire`: messages between processes and machines.
"""
