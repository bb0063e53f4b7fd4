"""Writes policies as ONNX files with their contract.

- `onnx`: the bundle: graph, metadata and golden examples.
- `contract`: meaning of the actions and range of the training data.
- `precision`: graphs in half precision.
- `manifests`: descriptions for LEAPP and Physical AI Studio.
- `language`: policies with an instruction.
"""
