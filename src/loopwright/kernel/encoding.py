"""Facts as bytes and back."""

import msgspec

from loopwright.kernel.facts import AnyFact

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(list[AnyFact])


def encode_facts(facts: list[AnyFact]) -> bytes:
    """Facts of one append as they stand on disk."""
    return _ENCODER.encode(facts)


def decode_facts(data: bytes) -> list[AnyFact]:
    return _DECODER.decode(data)
