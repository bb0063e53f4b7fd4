"""Results for a person to look at.

- `results`: what a run did and reached, with a phrase for every stage.
- `summary`: the same as JSON and as a table.
- `page`: the same as an HTML page.
- `explain`: lineage, from any artifact back to the demonstrations.
- `learning_curve`: success, corrections and cycle times of a training with a person.
- `plots`: pictures of stages and sessions.
"""
