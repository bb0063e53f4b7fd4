"""Fits parameters of the simulation to recorded motion.

- `recordings`: recorded motion of a robot.
- `parameters`: tunable parameters and their ranges.
- `tracking`: replay of the recorded motion in simulation.
- `tune`: the search.
- `identifiability`: precision with which the data determine a parameter.
"""
