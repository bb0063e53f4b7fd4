"""Families of environments: named members with parameters of their own, on which policies are
trained and evaluated, and the search for the member that is worst for a policy.

- `members`: the members of a family, in a file.
- `draw`: draws the members from a design.
- `mixture`: environments for training whose episodes are those of all members.
- `search`: finds the place of the lowest score between the bounds of parameters.
- `worst_case`: plays the episodes of a search, and adds the worst member to a family.
- `worst_case_report`: figures, chart and page of a search.
- `evaluation`: the success of policies in every member, and in the worst one again.
- `evaluation_report`: figures, chart and page of such an evaluation.
"""
