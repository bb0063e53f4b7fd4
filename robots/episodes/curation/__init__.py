"""Examines, describes and chooses the episodes of a store before a policy learns from them.

- `examine`: the pass over all episodes that finds faults.
- `examination`: options and result of an examination.
- `examine_page`: an examination as a page.
- `readable`: what is read of a data set.
- `any_format`: episodes of any format, read as those of a store.
- `dataset_statistics`: sizes, values, instructions and returns of a store.
- `dataset_quality`: trajectory quality and state-action coverage.
- `running`: moments, quantiles and distinct values in bounded memory.
- `checks`: the single checks of an examination.
- `choose`: selection of episodes.
- `mirror`: mirror images of push-T episodes.
- `weights`: weights of the episodes that a store states.
- `weighting`: new weights by groups, returns or hand.
- `edit`: copies without some episodes, shortened, or with other labels.
"""
