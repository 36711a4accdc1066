"""The client of operations, which interfaces call: in this process or over HTTP.

A verb opens a `Client` for an address, calls operations and follows runs. It does not know where
the operations run. May import `operations` and everything below; start reading at `client.py`.
"""
