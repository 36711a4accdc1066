"""Processes: started under a supervisor, with limits, and ended with all their descendants."""
