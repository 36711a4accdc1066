"""Views: typed projections of the log of a run, as people and programs see it.

A view folds events and holds no logic of its own: `summary` is a run as one object,
`progress` its lines as they arrive, `metrics` its figures, `certificate` what decided it,
`run_view` all that a page shows.

May import: ports, kernel, model, errors and `syntax`. Start reading at `summary.py`, then
`progress.py`.
"""
