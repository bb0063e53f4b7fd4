"""Files in `configs/`.

- `files`: found by name, composed with overrides over the defaults of a class, and validated.
- `protocols`: those of evaluations.
"""
