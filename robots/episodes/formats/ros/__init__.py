"""Reads the messages of ROS bags and MCAP files.

- `bags`: files and folders of recordings, SQLite files of rosbag2.
- `mcap`: records and chunks of MCAP files.
- `ros1_bag`: records and chunks of ROS 1 bags.
- `instructions`: sentences of topics of words.
- `content`: what a recording holds by topic, and its fields.
- `read_content`: reads the messages of a recording into it.
- `description`: the description of an episode that Handoff's export writes.
- `described_fields`: fields of a store, from the topics that a description names.
- `ros_types`: definitions of message types, bounded before they are decoded.
- `ros_messages`: messages as arrays of numbers with names.
"""
