"""Prompts: what an agent is shown, computed from the state of its run.

The prompt of a call is a function of the log before it, so it is never stored: the same events give
the same prompt. `calls` builds the prompt of an agent call, `stage` that of a stage of a role loop,
`conversation` the messages of a chat model, `judges` the questions to judges and evaluators.

May import: kernel, model, errors. Nothing here starts a process or opens a connection. Start
reading at `calls.py`.
"""
