"""The command line: it parses arguments, runs one use case and prints the result.

A command shows progress live on a terminal and as plain lines otherwise. `main.py` has the table of
commands; each module of commands is imported only when one of its commands is called, so that
`--help` and short commands start quickly. `repl/` has the interactive prompts.

May import: everything below, but no adapter package. Start reading at `main.py`.
"""
