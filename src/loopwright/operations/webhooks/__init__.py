"""Webhooks: what is stored about them, and their signatures."""
