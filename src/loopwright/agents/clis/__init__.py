"""Coding CLIs, the pure part: the call of each, and the meaning of its event stream.

`catalogue` has the properties of each program, `command_line` builds the argument vector and the
environment of a call, `claude codex opencode gemini acp` each parse events, `event_stream` finds
the events in the bytes, `transcript` collects the reports of one call.

May import: kernel, model, errors. An adapter starts the program.
"""
