"""How often a process that drives runs looks for garbage in circles.

Runs are made of many small records that know nothing of each other, and hardly any of them ever
stands in a circle: reference counts free them. With the interpreter's usual settings the collector
walks through all that are alive after every few hundred new ones and finds nothing, which costs a
tenth of the time of many loops at once.
"""

import gc

_USUAL = ((700, 10, 10), (2_000, 10, 10), (2_000, 10, 0))  # of the interpreters there are
_SELDOM = (50_000, 20, 50)


def collect_seldom() -> None:
    """Look for circles less often. Whoever has chosen for the process themselves is left alone."""
    if gc.get_threshold() in _USUAL:
        gc.freeze()  # modules and classes stay for good
        gc.set_threshold(*_SELDOM)
