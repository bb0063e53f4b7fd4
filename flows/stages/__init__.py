"""Defines the kinds of stages, functions that pass artifact folders to functions of other packages.

- `data`: stages that make episodes.
- `learn`: stages that make policies and other models.
- `release`: stages that evaluate, export and deploy policies.
"""
