"""Passwords: how long they are, and the slow hash that is kept of them.

A hash takes about 20 ms: a thief has to try each password, an honest person tries one. Whoever has
other things to do meanwhile makes it in a thread.
"""

import hashlib
import unicodedata
from typing import NewType

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerifyMismatchError

from loopwright.errors import LoopwrightError

Hashed = NewType("Hashed", str)
SHORTEST, LONGEST = 8, 128
_HASHER = PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1)
NOBODY = Hashed(_HASHER.hash("nobody"))
"""So that an unknown name takes as long as a wrong password."""


def check_password(password: str) -> None:
    if not SHORTEST <= len(password) <= LONGEST:
        raise LoopwrightError(
            f"a password has {SHORTEST} to {LONGEST} characters", code="bad-password"
        )


def hashed(password: str) -> Hashed:
    check_password(password)
    return Hashed(_HASHER.hash(_folded(password)))


def fits(kept: str, password: str) -> bool:
    try:
        return _HASHER.verify(kept, _folded(password))
    except (VerifyMismatchError, InvalidHashError):
        return False


def _folded(password: str) -> str:
    """One spelling for what looks the same, and a bound for what is hashed slowly."""
    text = unicodedata.normalize("NFKC", password)
    return text if len(text) <= LONGEST else hashlib.sha256(text.encode()).hexdigest()
