"""Fits parameters of the simulation to recorded motion.

- `recordings`: recorded motion of a robot.
- `parameters`: what may be tuned, and its range.
- `tracking`: the recorded motion, replayed in simulation.
- `tune`: the search.
- `identifiability`: how far the data determine a parameter.
"""
