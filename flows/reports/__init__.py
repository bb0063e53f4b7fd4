"""Presents results as tables, HTML pages and plots.

- `results`: metrics of a run, and a phrase per stage.
- `summary`: results as JSON and as a terminal table.
- `page`: results as an HTML page.
- `speed`: success against inference time, a section of that page.
- `explain`: lineage of an artifact or a run as text, back to the demonstrations.
- `lineage`: the same as an offline page with the graph.
- `provenance_text`: phrases for the provenance in a manifest.
- `resolved_recipe`: every stage of a run with all of its options.
- `reproduce`: repeats a run from its record and manifests.
- `reproduction`: compares the artifacts of a repeated run.
- `learning_curve`: success, corrections and cycle times of a HIL training.
- `dataset_text`: data sets, findings and statistics as lines.
- `episode_view`: one episode as a page with a slider.
- `open_loop`: errors of a policy's actions against recorded ones.
- `plots`: plots of stages and sessions.
- `run_records`: the record of every run, `run.json`, and its export.
"""
