"""The engine drives runs: it folds, decides, appends and performs what is pending.

Starting and resuming are the same function. `actor` drives one run, `driver` all runs of a process;
`effects` turns pending effects into jobs for a performer, and `activity` records what agents do.

May import: prompts, ports, kernel, model, errors. It uses no store, dialect or program directly:
`operations` passes in a log and a performer. Start reading at `actor.py`.
"""
