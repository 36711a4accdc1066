"""The prompt `loopwright repl` and the conversation `loopwright chat`: sessions, commands,
line input.
"""
