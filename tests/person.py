"""The person who runs the tests, as commands know them: by the user id."""

from loopwright.operations.accounts.access import current_user

ME = current_user()
