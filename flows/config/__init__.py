"""Reads configuration files and builds options from them.

- `files`: finds and reads YAML files.
- `overrides`: parses `key=value` and applies it.
- `options`: builds objects of configuration classes from plain values.
- `choices`: the values that an option can have, where they are a few.
- `descriptions`: type, default and meaning of every option, for tables.
- `resources`: cores, memory and GPUs that a stage needs.
- `protocols`: reads evaluation protocols.
"""
