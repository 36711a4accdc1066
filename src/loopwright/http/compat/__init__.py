"""Routes and payloads of the systems whose formats Loopwright runs, one package for each
system.
"""
