"""What a definition would do: the real kernel with stubs for agents, checks and people."""
