"""Encodes instructions as arrays and as tokens.

- `text`: instructions as arrays of UTF-8, padded with zeros.
- `tokenizer`: the tokenizer of an exported policy.
"""
