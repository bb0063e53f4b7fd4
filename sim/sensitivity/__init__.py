"""Measures which parameters of the environments decide whether a policy succeeds.

- `factors`: parameters of the environments and the values that they take.
- `design`: designs over all factors at once, with a factor that has no effect.
- `family`: the points of a design as environments that are stepped together.
- `pieces`: batches of episodes in environments that differ.
- `measure`: the episodes of all values and of the design, paired by start.
- `importance`: the influence of each factor on success over a design.
- `figures`: intervals, paired differences and influences of a measurement.
- `report`: page, chart and figures.
"""
