"""Loops by name: assistants, loops of roles, and the loop tools of agents."""
