"""A definition that comes from stdin, where its file is called `-`."""

import sys

import click

STDIN = "-"
SHOWN = "(stdin)"


def piped_definition(ctx: click.Context) -> bytes:
    """What is piped in, and no more than it takes to see that it is too much."""
    from loopwright.app.dialects import MAX_BYTES  # noqa: PLC0415 - help stays quick

    if sys.stdin is None or sys.stdin.isatty():
        raise click.UsageError("- reads the definition from stdin, which is a terminal here", ctx)
    return sys.stdin.buffer.read(MAX_BYTES + 1)
