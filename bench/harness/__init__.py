"""The parts of the benchmark driver; standard library only.

``environment``  the venv of the peers, what is said about the machine
``contest``      who competes in what; runs the contenders in alternating order
``targets``      the figures to reach and how they are computed from the samples
``report``       the table on the terminal, the JSON and the Markdown

Start reading at ``bench/run.py``; a contender's side of the protocol is in ``bench/README.md``.
"""
