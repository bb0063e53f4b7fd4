"""Writes policies as ONNX files with their contract.

- `onnx`: capture, parity and contract.
- `language`: policies with an instruction.
"""
