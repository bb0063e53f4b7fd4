"""Records a person's demonstrations at an arm: `handoff record TASK --arm ADDRESS`.

- `config`: options of a session, and the checks of them.
- `command`: the arguments of the command as options.
- `session`: runs and records the episodes.
"""
