"""Agents that are programs, and the processes that run them.

`performer` answers the effects of a run: coding CLIs (`coding_agents`, with the calls and event
streams of each in `clis`), ACP agents, JSON lines, scripts, and commands. A program runs in a
sandbox (`sandbox`) under its own supervisor (`processes`), which leaves no process behind, even if
the driver is killed.

May import: ports, syntax, prompts, kernel, model, errors. Only `operations` and `testing` import
it. Start reading at `performer.py`, then `processes/process.py`.
"""
