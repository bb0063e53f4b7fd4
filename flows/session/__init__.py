"""Runs sessions with a person: environment, person, episodes and views.

- `config`: the environment, and the person with their device.
- `worlds`: both made from it.
- `episodes`: one episode after another with a person who may overrule.
- `viewer`: a process that draws the environment for the console.
- `scene_3d`: the 3-D scene that the console shows.
"""
