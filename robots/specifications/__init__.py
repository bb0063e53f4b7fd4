"""States requirements of a whole episode in signal temporal logic (STL), and measures by how much
an episode meets them.

- `formula`: formulas and the arithmetic that they compare.
- `parser`: formulas written as text.
- `quantities`: sizes and values of the arithmetic over observed fields.
- `robustness`: robustness of a recorded episode.
- `streams`: robustness of a formula within others, step by step.
- `monitor`: robustness of running episodes, step by step, in bounded memory.
- `guard`: specifications of an episode at an arm, which may end it.
- `shares`: shares of the episodes that satisfy specifications.
"""
