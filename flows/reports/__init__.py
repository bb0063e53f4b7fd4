"""Presents results as tables, HTML pages and plots.

- `results`: metrics of a run, and a phrase per stage.
- `summary`: results as JSON and as a terminal table.
- `page`: results as an HTML page.
- `explain`: lineage of an artifact back to the demonstrations.
- `learning_curve`: success, corrections and cycle times of a HIL training.
- `plots`: plots of stages and sessions.
"""
