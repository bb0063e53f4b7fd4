"""Reads the messages of ROS bags and MCAP files.

- `bags`: SQLite files and folders of rosbag2.
- `mcap`: records and chunks of MCAP files.
- `ros_types`: definitions of message types, bounded before they are decoded.
- `ros_messages`: messages as arrays of numbers with names.
"""
