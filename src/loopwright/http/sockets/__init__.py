"""Socket.IO: `transport` knows the library, `endpoint` handles what clients send,
`subscribers` what they receive.
"""
