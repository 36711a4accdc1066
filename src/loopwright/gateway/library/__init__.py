"""The client library, and everything here that knows it. Importing this takes about a second.

`speaking.LibrarySpeaker` sends one request on the library's model layer, `converting` turns our
records into its messages and back, `failures` its exceptions into values; `chat`, `claude` and
`gemini` make its models, `shortcut` spares long histories a costly walk, `prices` reads its list.

May import: the rest of gateway and below. Nobody imports this but by name, when it is needed.
"""

from loopwright.gateway.library.speaking import LibrarySpeaker, speaker

__all__ = ["LibrarySpeaker", "speaker"]
