"""Carries sentences among arrays.

- `text`: sentences as UTF-8 padded with zeros.
- `tokenizer`: sentences as the tokens of an exported policy.
"""
