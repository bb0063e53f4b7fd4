"""Writes episode stores in published formats.

- `lerobot`: LeRobot data sets v3.0 and v2.1.
- `lerobot_entries`: metadata of episodes in LeRobot's tables, and what an export loses.
- `lerobot_features`: names and descriptions of a store's fields as LeRobot's features.
- `lerobot_layouts`: files of both versions, and the metadata that names them.
- `lerobot_statistics`: smallest and largest values, means, deviations and quantiles.
- `replay_buffer`: replay buffers of diffusion_policy (Zarr).
- `robomimic`: HDF5 files of robomimic and Isaac Lab.
- `mcap`: MCAP files with messages of ROS 2.
- `ros_topics`: the message type of every field.
- `rerun_recording`: recordings of the viewer Rerun.
- `rerun_blueprint`: the arrangement of its views.
- `viewer_fields`: what fields are to viewers, times of samples, events.
- `mp4`: H.264 or AV1 video with exact times.
- `png`: PNG pictures.
"""
