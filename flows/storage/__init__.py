"""Keeps artifacts and results of runs on S3-compatible storage, beside a local working copy.

- `address`: addresses of runs, a local folder or `s3://BUCKET/PREFIX`.
- `objects`: objects of S3-compatible storage, read and written over the network.
- `working_copy`: the local folder of a storage, which has the artifacts that this computer uses.
- `published_results`: the results of a run, as a storage has them.
- `shared_runs`: the folder and the storage of a recipe's runs.
"""
