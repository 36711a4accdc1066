"""Operations: the use cases of Loopwright, one module for each noun.

`runs` starts, answers, pauses, resumes and stops runs for every interface. `wiring` chooses
stores, agents and drivers and puts them together; `settings` resolves the settings once.

May import: every package below, and is the only one that imports adapters. The interfaces
(cli, http) and the workers call it. Start reading at `runs.py`, then `run_start.py` and
`wiring.py`.
"""
