"""Coding CLIs, the pure side: how each is called, and what its stream of events says.

`table` has what is known about each program, `arguments` makes the argument vector and the
environment of a call, `claude codex opencode gemini` read one event each, `stream` finds the events
in the bytes, `outcome` judges exit code, last event and error flag together.

May import: kernel, model, errors. Starting the program is the business of an adapter.
"""
