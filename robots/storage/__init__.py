"""Writes files that survive a crash, and reads files of folders and buckets.

- `durable`: atomic writes, and a lock for a single writer.
- `location`: a folder, or a prefix of a bucket, from which files and arrays are read.
- `bucket_arrays`: arrays in a bucket, read by ranges of bytes.
- `s3_client`: the client of a bucket, and its errors in one line.
- `read_ahead`: reads in order, several at the same time.
- `onnx_file`: metadata and digest of an ONNX file.
- `append_log`: an append-only log of numbered records.
- `parsed_sources`: a cache of parsed source files.
"""
