"""Files of an episode store: its index, and the segments that hold the samples.

- `index`: a store's schema, and the index of its committed episodes.
- `segment`: one segment of a store, with a group per stream and an array per field.
- `recovery`: segments that the index does not name, after a crash or with an older index.
"""
