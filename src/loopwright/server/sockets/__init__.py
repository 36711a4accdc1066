"""Sockets: loops driven and followed live over Socket.IO, beside the routes.

`line.py` alone knows the library. `clients.py` is who is connected and what they are sent, which is
bounded; `commands.py` the events that come in; `herald.py` tells loops to their starters in the
words of `words.py`; `tails.py` sends the facts of a run from a number on; `door.py` lets people in
and out and sees to what must happen when they leave.

May import: what the server may. Start reading at `door.py`, then `commands.py`.
"""
