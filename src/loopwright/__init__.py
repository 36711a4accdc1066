"""Loopwright runs agent loops durably.

A definition becomes a Plan (`dialects`), a pure decider says what comes next (`kernel`), the
runtime performs it and appends every event to a log before anything depends on it. A run that
was interrupted is folded from its log and continues where it stopped.

Importing this package does nothing else: no file is opened, nothing is printed, no adapter is
loaded. Start reading at `loopwright.model`, then `loopwright.kernel`.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
