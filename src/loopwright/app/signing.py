"""Signatures of Standard Webhooks, version 1: made for what we send, checked for what comes in."""

import base64
import hashlib
import hmac
import secrets

TOLERANCE_MS = 300_000  # how far a signature may be from now, before and after
MOST_SIGNATURES = 8  # of one message: whoever changes a secret sends two for a while
MOST_ID = 200
PREFIX = "whsec_"


def new_secret() -> str:
    return f"{PREFIX}{base64.b64encode(secrets.token_bytes(32)).decode()}"


def sign(secret: str, message: str, at: str, body: bytes) -> str:
    """The signature of a message with this id, sent at this second."""
    key = base64.b64decode(secret.removeprefix(PREFIX))
    text = f"{message}.{at}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, text, hashlib.sha256).digest()).decode()


def is_signed(secret: str, given: tuple[str, str, str], body: bytes, now_ms: int) -> bool:
    """Whether one of the signatures is ours and of now; `given` is id, timestamp, signatures."""
    message, at, signatures = given
    if not (0 < len(message) <= MOST_ID and message.isascii() and message.isprintable()):
        return False
    if not (at.isascii() and at.isdigit() and len(at) <= 12):
        return False
    wanted = sign(secret, message, at, body).encode()
    listed = [one.encode(errors="replace") for one in signatures.split(" ")[:MOST_SIGNATURES]]
    same = [hmac.compare_digest(wanted, one) for one in listed]  # all of them, in the same time
    return any(same) and abs(int(at) * 1_000 - now_ms) <= TOLERANCE_MS
