"""What a loop repeats: one module for each question that is asked of every kind of body.

`next_events` decides what a body requests next, `outcome` how it ends, `iteration` runs one
iteration with its checks, `conversation` and `history` are those of chat models.
"""
