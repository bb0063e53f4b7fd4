"""Lets people go through recorded episodes in a browser: look, label, shorten, note, undo.

- `command`: the command `handoff episodes review`.
- `app`: the web application.
- `session`: the state of a review, and what pages ask of it.
- `review_log`: the file with every change, by whom and when.
- `review_edits`: changes of a review as edits of a store.
- `data_set`: the episodes that are looked at, of a store or of another format.
- `episode_rows`: the list of the episodes, and what about each asks for a look.
- `episode_signals`: curves, events and who acted in one episode.
"""
