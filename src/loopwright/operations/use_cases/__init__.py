"""Use cases, each declared once, for every interface: see `table.py`."""
