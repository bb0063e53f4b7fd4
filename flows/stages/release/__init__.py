"""Defines the stages that evaluate, export and deploy policies.

- `config`: options of these stages.
- `evaluate`: evaluates a policy under a protocol.
- `robustness`: evaluates policies under displaced cameras, other light and distractors.
- `sensitivity`: measures which parameters of the environments decide whether policies succeed.
- `worst_case`: searches for the environment that is worst for a policy.
- `evaluate_family`: evaluates policies in every member of a family of environments.
- `open_loop`: compares a policy's actions with recorded ones.
- `compare`: compares evaluations, grouped over seeds.
- `compare_simulators`: compares policies in several simulators.
- `export`: exports a policy to an ONNX file with its contract.
- `gate`: checks an exported policy's outputs and latency.
- `approve`: waits for a person who releases a policy for an arm.
- `deploy`: runs a policy on the twin.
- `compare_deployments`: compares deployments from the same starts.
"""
