"""Text, or any bytes, in; one id for every byte out, and back. There is nothing to learn and nothing to lose."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from regard.text.normal import Normal
from regard.text.vocabulary import SPECIALS, Spelt, readable


@dataclass(frozen=True)
class Bytes(Spelt):
    """A piece is a byte of UTF-8: 256 of them after the special ids."""

    normal: Normal = Normal()
    kind = "bytes"

    @cached_property
    def pieces(self):  # type: ignore[override]
        return tuple(bytes([one]) for one in range(256))

    def encode(self, text):
        return self.encode_bytes(self.normal.apply(text).encode())

    def encode_bytes(self, raw: bytes) -> list[int]:
        """The ids of bytes that need not be text; the normal form does not touch them."""
        return [SPECIALS + byte for byte in raw]

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The very bytes, where `decode` shows a sign for what is no UTF-8."""
        return b"".join(self.spell(ids))

    def tokens(self, text):
        return [readable(piece) for piece in self.spell(self.encode(text))]

    def learnt(self):
        return {}
