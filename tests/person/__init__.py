"""A scripted person at the console's page, who has no more to go on than a person has.

`eyes` turns the page's pictures into places, `hands` presses its keys, `skills` does the tasks,
`tee` does push-T with the stick on the page, and `attempts` sits through a recording session. The
script reads the pictures, what the page writes, and nothing of the simulated world: only where the
cameras stand, which a person sees by looking about the room.
"""
