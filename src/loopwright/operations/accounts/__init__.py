"""Who may use a server: people, roles, sessions and tokens."""
