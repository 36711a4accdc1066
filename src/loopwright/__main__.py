"""`python -m loopwright` is `loopwright`."""

import sys

# Python looks for modules in the current folder first, where an agent may have written some.
if not sys.flags.safe_path:
    del sys.path[0]

from loopwright.cli.main import main

if __name__ == "__main__":
    main()
