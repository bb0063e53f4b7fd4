"""Stores episodes in Zarr so that a crash cannot damage them, and reads demonstrations.

- `store`: a folder that only grows.
- `index`: its schema, and the index of what is committed.
- `segment`: one segment: a group per stream, an array per field.
- `schema`: streams of different rates and their fields.
- `pack`: a store as one zip file.
- `corrections`: episodes in which a person may overrule a policy.
- `demonstrations`: one interface to demonstrations of any known format.
- `sources`: the places in which the push-T demonstrations are looked for.
- `ingest`: demonstrations copied into a store.
- `mirror`: mirror images of push-T episodes.
- `formats`: a module per format of demonstrations.
"""
