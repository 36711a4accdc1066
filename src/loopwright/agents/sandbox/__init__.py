"""Sandboxes of programs: the levels, the mounts and the filter of system calls of bubblewrap."""
