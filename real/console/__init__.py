"""Lets people watch, take over and label in a browser, by a server process beside the arm's loop.

- `control`: who is in control, what the arm is commanded, and when it holds still.
- `messages`: messages between pages, server and the robot's process.
- `server`: the server's state and its websockets.
- `page_connection`: what each page has received, and its next message.
- `telemetry`: steps of the running episode and statistics of those that ended.
- `audit`: the log of every action.
- `scene_proxy`: forwarding of pages to the 3-D scene.
- `app`: the web application.
- `attached`: another web application under the console's address.
- `process`: the server's process.
- `client`: the robot's end of the connection.
- `console_operator`: a person at the console as an operator.
"""
