"""The Model Context Protocol, by the official library: servers that Loopwright starts, and its
own.
"""
