"""Runs policies on an arm, within limits and under supervision, and decides which are released.

- `loop`: the control loop, from a policy's chunks to a stream of targets.
- `hints`: hints to the person who supervises, from the spread of chunks and novel observations.
- `inference`: inference of chunks in a thread beside the loop.
- `schedule`: actions of chunks by policy step.
- `person_motion`: how a person's device moves the arm.
- `supervision`: a person who holds the arm, steers it and labels the episode.
- `episode_recorder`: the record of an episode, and its schema in a store.
- `recording`: storing an episode even if a fault ended it.
- `onnx_policy`: an exported policy on ONNX Runtime.
- `onnx_success`: an exported success classifier on ONNX Runtime.
- `remote_policy`: a policy on another machine.
- `bundle_checks`: parity and latency of an exported policy.
- `tracked_field`: range, speed and age of a field that a tracker sends.
- `object_tracker`: observed fields from a tracker.
- `field_trackers`: several trackers, and constants, as one observation.
"""
