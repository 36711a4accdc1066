"""The runtime: the imperative shell around the kernel. It drives runs and performs what they ask.

May import: agents, ports, kernel, model, errors. Blind to stores, dialects and programs: `app`
hands it a log and a performer. Start reading at `actor.py` (one run), then `driver.py` (all runs).
Start and resume are the same thing: fold, settle, append, perform what is pending.
"""
