"""Use cases: start, continue, answer, pause, stop, list and follow runs.

The one room that names adapters. Settings are resolved here, stores and agents are put
together here, and the views that all doors show are built here.

May import: every room below. Imported by: the doors (cli, later server and tui).
"""
