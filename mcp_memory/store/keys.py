"""Keyed hashes and short ids: how text is looked up without standing in an index."""

from __future__ import annotations

import hashlib
import secrets

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_ID_BITS = 50


class Keys:
    """Keyed hashes (BLAKE2b, 63 bits) under the file's own secret: equal texts have equal keys in this file only."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def of(self, *parts: str) -> int:
        digest = hashlib.blake2b(key=self._secret, digest_size=8)
        for part in parts:
            data = part.encode("utf-8")
            digest.update(len(data).to_bytes(8, "big"))
            digest.update(data)
        return int.from_bytes(digest.digest(), "big") >> 1


def new_ident() -> int:
    return secrets.randbits(_ID_BITS)


def id_of(prefix: str, ident: int) -> str:
    """`prefix` and ten characters (Crockford's base 32)."""
    return prefix + "".join(_ALPHABET[ident >> shift & 31] for shift in range(_ID_BITS - 5, -1, -5))


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
