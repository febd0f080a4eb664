"""What the HTTP status of a provider means to whoever runs the server, the same for every provider."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from mcp_memory.errors import ProviderError, ProviderRejected

_LONGEST_WAIT_SECONDS = 86_400.0


def failure(name: str, status: int, headers: Mapping[str, str], *, key: str, address: str) -> ProviderError:
    """The error for an answer that is no success. `key` and `address` are the variables that hold the endpoint's key and
    its base URL."""
    said = f"{name}: the endpoint answered {status}"
    if status in (401, 403):
        return ProviderError(f"{said}: not allowed. Set {key} to a key that is.")
    if status == 404:
        return ProviderError(f"{said}: it does not know this model, or {address} is not its address.")
    if status in (400, 413, 422):
        return ProviderRejected(f"{said}: it does not take this request.")
    return ProviderError(f"{said}.", retry_after(headers))


def retry_after(headers: Mapping[str, str]) -> float:
    """The seconds that a provider asks to be left alone for, at most a day; 0 where it does not say."""
    said = headers.get("retry-after", "")
    try:
        seconds = float(said)
    except ValueError:
        try:
            until = parsedate_to_datetime(said)
        except ValueError:
            return 0.0
        seconds = (until.replace(tzinfo=until.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return min(max(seconds, 0.0), _LONGEST_WAIT_SECONDS) if math.isfinite(seconds) else 0.0
