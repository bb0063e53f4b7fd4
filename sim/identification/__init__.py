"""Fits parameters of the simulation to recorded motion.

- `config`: options.
- `excitation`: exciting motions of a simulated arm.
- `recordings`: recorded motion of a robot.
- `parameters`: tunable parameters and their ranges.
- `tracking`: replay of the recorded motion in simulation.
- `tune`: the search.
- `report`: page, pictures and figures of a tuning.
- `fit_store`: tuning of a whole store.
- `identifiability`: precision with which the data determine a parameter.
"""
