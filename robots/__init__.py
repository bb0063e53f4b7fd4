"""Defines the interfaces and data types that all other packages share; needs no torch and no
simulator.

- `config`: configuration classes that refuse unknown keys by their path.
- `errors`: the errors that are printed as one line, without a traceback.
- `extras`: the pip extra that installs a missing package.
- `interfaces`: the protocols between policies, environments, operators and hardware.
- `spec`: named arrays: shape, dtype, unit and frame.
- `contract`: shapes, units and rates of an exported policy.
- `success`: detection of success from a classifier's probabilities.
- `proportions`: confidence intervals of a proportion.
- `seed_ranges`: disjoint ranges of episode seeds, one per use.
- `outside`: imports from packages outside Handoff.
- `code_version`: a digest of a module's code and of all modules that it imports.
- `imported_code`: a record of the modules that a process imports, and a check that none was edited.
- `processes`: child processes that end with their parent.
- `signals`: SIGTERM and SIGHUP as exceptions.
- `html_page`: the style of every HTML page.
- `franka`: the robots: kinematics, limits, masses and gripper.
- `control`: action spaces, impedance and gripper commands.
- `episodes`: the episode store, and the formats of demonstrations.
- `language`: instructions as arrays and as tokens.
- `specifications`: requirements in signal temporal logic, and by how much episodes meet them.
- `signing`: signed folders, keys, and whom a user trusts.
- `storage`: files that survive a crash.
- `wire`: messages between processes and machines.
"""
