"""The command line: one file per command, no logic of its own.

A command reads its arguments, calls one use case of `app` and shows the answer, live on a
terminal, as plain lines elsewhere. Commands are loaded when they are called, which keeps
`--help` quick.

May import: app and below, but no adapter room. Start reading at `main.py`.
"""
