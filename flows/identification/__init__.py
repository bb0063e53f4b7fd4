"""Identifies a robot behind its network protocol, and measures what that is worth.

- `config`: options of the stages.
- `arm_motions`: exciting motions of an arm under the joint law of its driver.
- `transfer`: success at the twin before and after, and identified parameters against true ones.
- `transfer_report`: page and picture of it.
"""
