"""Keyed hashes and short ids: how text is looked up without standing in an index."""

from __future__ import annotations

import hashlib
import secrets
from functools import lru_cache

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_ID_BITS = 50
_SHIFTS = tuple(range(_ID_BITS - 5, -1, -5))
_CACHED = 65_536


class Keys:
    """Keyed hashes (BLAKE2b) under the file's own secret: equal texts have equal keys in this file only."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.often = lru_cache(_CACHED)(self.of)
        """`of`, remembered: for short texts that come again and again (names of sessions, fields, speakers)."""
        self.word = lru_cache(_CACHED)(self._word)

    def of(self, *parts: str) -> int:
        """63 bits of the parts, which are kept apart."""
        return int.from_bytes(self._digest(parts, 8), "big") >> 1

    def _word(self, scope: int, word: str) -> str:
        """60 bits as ten letters and digits: one word of a scope's index."""
        number = int.from_bytes(self._digest((str(scope), word), 8), "big")
        return "".join([_ALPHABET[number >> shift & 31] for shift in range(0, 60, 5)])

    def _digest(self, parts: tuple[str, ...], size: int) -> bytes:
        digest = hashlib.blake2b(key=self._secret, digest_size=size)
        for part in parts:
            data = part.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(8, "big"))
            digest.update(data)
        return digest.digest()


def new_ident() -> int:
    return secrets.randbits(_ID_BITS)


def id_of(prefix: str, ident: int) -> str:
    """`prefix` and ten characters (Crockford's base 32)."""
    return prefix + "".join([_ALPHABET[ident >> shift & 31] for shift in _SHIFTS])


def ident_of(prefix: str, id: str) -> int | None:
    """The number behind an id, or None where the text is no such id."""
    if len(id) != 1 + _ID_BITS // 5 or id[0] != prefix:
        return None
    ident = 0
    for character in id[1:]:
        digit = _ALPHABET.find(character)
        if digit < 0:
            return None
        ident = ident << 5 | digit
    return ident
