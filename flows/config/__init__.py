"""Reads configurations from the files in `configs/`.

- `files`: finds, composes and validates configuration files.
- `protocols`: evaluation protocols by name.
"""
