"""Files of an episode store: its index, and the segments that hold the samples.

- `index`: a store's schema, and the index of its committed episodes.
- `segment`: one segment of a store, with a group per stream and an array per field.
- `chunks`: one field of a running episode, written chunk by chunk.
- `running_video`: one camera of a running episode, as video.
- `episode_files`: all files of a running episode, which a kill may leave.
- `indexed_episodes`: metadata and windows of the episodes that the index names.
- `recovery`: segments that the index does not name, after a crash or with an older index.
- `video`: one video of a camera's pictures or depth maps, whose frames are read by number.
- `video_codec`: codecs of videos and their settings, header, encoders and decoders.
- `video_copy`: coded frames that are copied to another video as they are.
- `video_packets`: places of the coded frames in a video file, also of one that was cut short.
"""
