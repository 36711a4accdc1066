"""Which agents a run may use, with which program, tools and permissions."""
