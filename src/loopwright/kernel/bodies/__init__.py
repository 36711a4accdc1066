"""Kinds of bodies: a call, a graph of steps, a loop, a loop over a list, and a turn of a model.

Each has a module with the same functions: `outcome`, `next_events` and `close` decide,
`note_request`, `note_answer` and `resume` fold. `dispatch` chooses the module by the type of the
body. `history` has the conversations of chat models.
"""
