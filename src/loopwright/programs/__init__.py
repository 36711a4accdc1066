"""Agents and checks that are programs, and the processes behind them.

A program runs under a supervisor of its own (`supervise`), which leaves no process behind:
not after an exit, a stop or a time limit, nor when the driver itself is killed. What a dead
driver and a dead supervisor left is ended by the next start (`sweep`).

May import `errors`, `model`, `kernel`, `ports` and `syntax`; is named by `app` alone.
Start with `process.run_program`.
"""
