"""Compares policies at the console without the person knowing which one acts.

- `config`: options of a comparison.
- `sealed_order`: the hidden order, drawn at the start, sealed in a file and revealed at the end.
- `rounds`: what has been played, what is next, and the sequential test.
- `blinded_run`: episodes whose policy nothing tells.
- `start_pictures`: pictures of a start, by which a person puts the objects back.
- `result`: figures of a comparison that is over.
- `result_page`: the page with these figures.
- `command`: implements `handoff deploy RELEASE --against RELEASE`.
"""
