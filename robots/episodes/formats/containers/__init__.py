"""Opens the containers that formats are made of. A damaged or crafted one gives one clear error,
runs no code and exhausts no memory.

- `folder`: files of a folder without links that leave it.
- `damaged_files`: tells files that were cut short from those of an unknown format.
- `zarr_v2`: checks that reading an array from outside runs no code.
- `replay_arrays`: arrays of a replay buffer, row by row.
- `hdf5`: groups and rows of HDF5 files.
- `hdf5_arrays`: checks of one array of an HDF5 file.
- `hdf5_bytes`: the bytes of an HDF5 file, checked before the library reads them.
- `npz_members`: arrays of a NumPy archive, row by row.
- `parquet_rows`: rows of parquet files in batches.
- `pickles`: pickles of arrays and containers, and of nothing else.
- `pictures`: JPEG and PNG pictures.
- `tfrecords`: records of tfrecord files, with their checksums.
- `tfds_features`: the features that TFDS describes.
"""
