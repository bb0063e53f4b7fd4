"""Records runs: who started what, where, with which code and data, and what became of it.

- `record`: writes `run.json` when a run starts and when it ends, and keeps those of earlier runs.
- `checkout`: commit and uncommitted changes of Handoff's code.
- `computer`: processor, GPUs, threads, and the variables that a run reads.
- `places`: paths in a record, which hold on another computer where they can.
- `process_mark`: the process of a run, and whether it still runs.
- `reading`: finds runs and reads their records.
- `run_text`: phrases for the record of a run.
- `openlineage`: a finished run as events of OpenLineage.
- `mlflow_export`: a run with its stages, options, metrics and curves in MLflow.
"""
