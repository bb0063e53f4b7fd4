"""Stores episodes in crash-safe Zarr folders, and reads demonstrations.

- `store`: the append-only episode store.
- `segments`: a store's files: the index, and the segments that hold the samples.
- `reference`: a store whose samples stay in another folder or a bucket.
- `episode_writer`: many episodes that are committed together.
- `running_episode`: an episode that is written while it is recorded.
- `schema`: streams of different rates, and their fields.
- `pack`: a store as one zip file.
- `metadata`: what a recorder states about an episode.
- `corrections`: episodes in which a person may take over from a policy.
- `demonstrations`: one interface to all formats of demonstrations.
- `sources`: search for the push-T demonstrations.
- `config`: how the arrays of a data set become fields, as options.
- `field_map`: names, units, rates and rotations of a data set's arrays.
- `resample`: an episode at another rate.
- `ingest`: copying demonstrations into a store.
- `write_episodes`: a store of NumPy arrays in one call.
- `merge`: several stores as one.
- `formats`: readers of published formats, one module each.
- `exports`: writers of published formats.
- `curation`: examination, choice and editing of episodes.
"""
