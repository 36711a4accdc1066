"""The client library, and all code that uses it. Importing it takes about a second.

`speaker.LibrarySpeaker` sends one request on the library's model layer and turns its exceptions
into values, `messages` converts our records into its messages and back and avoids an expensive
traversal of long histories; `chat` and `claude` build its models.

May import: the rest of gateway and below. Only ever imported inside a function, when it is needed.
"""
