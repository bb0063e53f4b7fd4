"""Writes policies as ONNX files with their contract.

- `onnx`: the bundle: graph, metadata and golden examples.
- `graph`: the graph of a policy.
- `contract`: meaning of the actions and range of the training data.
- `precision`: graphs in half precision, and with integer matrix products.
- `manifests`: descriptions for LEAPP and Physical AI Studio.
- `pictures`: statistics of the training pictures.
- `language`: policies with an instruction.
- `trunk`: the frozen trunk of image encoders.
"""
