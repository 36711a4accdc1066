"""Routes of Loopwright's own API, one module for each noun, each with its family of routes."""
