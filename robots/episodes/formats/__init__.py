"""Reads published formats of demonstrations, one module each.

- `source`: what every reader gives, and how it answers damaged files.
- `lerobot`: LeRobot v3.0, v2.1 and v2.0.
- `rlds`: RLDS, as TFDS writes it.
- `minari`: Minari.
- `robomimic`: HDF5 of robomimic, LIBERO and Isaac Lab.
- `maniskill`: HDF5 of ManiSkill.
- `aloha`: HDF5 of ALOHA.
- `d4rl`: HDF5 of D4RL.
- `rosbag`: MCAP and rosbag2.
- `hil_serl`: pickles of hil-serl, by a reader that runs no code.
- `npz`: NumPy archives.
- `replay_buffer`: replay buffers of diffusion_policy and UMI.
- `pusht`: the push-T replay buffer, converted to metres.
- `lerobot_files`, `ros`, `containers`: packages of the files that formats are made of.
"""
