"""Hints to a person beside a policy: when it is likely to fail, and why. They move nothing.

- `config`: options of the hints of a session.
- `causes`: causes of a hint, and their sentences.
- `signals`: signals of a likely failure, from what is measured at a step.
- `monitor`: limits from recent solved episodes, and the hints of the running one.
- `usefulness`: precision and recall of recorded hints, beside hints at random.
"""
