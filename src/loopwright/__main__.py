"""`python -m loopwright` is `loopwright`."""

from loopwright.cli.main import main

if __name__ == "__main__":
    main()
