"""Coding CLIs, the pure side: how each is called, and what its stream of events says.

`catalogue` has what is known about each program, `command_line` makes the argument vector and the
environment of a call, `claude codex opencode gemini acp` read one event each, `event_stream` finds
the events in the bytes, `transcript` collects what one call reported.

May import: kernel, model, errors. Starting the program is the business of an adapter.
"""
