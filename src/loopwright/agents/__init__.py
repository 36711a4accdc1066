"""Agents, the pure side: what an agent is shown, computed from the state of its run.

May import: kernel, model, errors. No process, no net: sending is the business of adapters.
Start reading at `prompt.py`. The prompt of a call is a function of the log before it, so it is
never stored: the same facts give the same prompt.
"""
