"""Tools with which models start and control loops: of `loopwright mcp`, and of agents of runs."""
