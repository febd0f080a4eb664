"""Every failure that a caller is expected to meet, each text written for the reader who can act on it.

- MemoryServerError
  - InvalidInput         the caller's argument: names the argument and what would be accepted
    - InvalidFilter      a filter that cannot be read, with a caret under the place
    - InvalidCursor      a cursor that does not belong to this search
    - InvalidBatch       an answer to a batch that was not handed out here, or is stale
  - NotFound             an id that this scope does not hold
  - ConfirmationNeeded   a broad `forget` without the token of its preview
  - ProviderError        an embedder or a language model could not do its work; the log is not affected
    - ProviderMissing    the package or the model that a setting names is not installed
    - ProviderRejected   it answered, but nothing that can be used for this input: asked again, it may do the same
      - ProviderTruncated  its answer was cut: ask for less at once
  - StoreError           the database could not be used
    - StoreBusy          another process held the write lock for too long: try again
    - StoreDamaged       the file is not a sound database: it was set aside, never overwritten
    - StoreTooNew        the file was written by a newer release: upgrade
  - SettingsError        a setting that cannot be used; read by whoever starts the server

The texts reach a language model as they are: no paths, no SQL, no traces. What an operator needs beyond that goes to
the log.
"""

from __future__ import annotations


class MemoryServerError(Exception):
    """The root of the tree above."""


class InvalidInput(MemoryServerError):
    pass


class InvalidFilter(InvalidInput):
    """A filter that cannot be read or names an unknown field.

    `position` is the offset in characters at which reading stopped.
    """

    def __init__(self, message: str, text: str = "", position: int = 0) -> None:
        self.position = position
        if text:
            start = max(0, position - 40)
            shown = text[start : position + 40].replace("\n", " ")
            message = f"{message}\n  {shown}\n  {' ' * (position - start)}^"
        super().__init__(message)


class InvalidCursor(InvalidInput):
    pass


class InvalidBatch(InvalidInput):
    pass


class NotFound(MemoryServerError):
    pass


class ConfirmationNeeded(MemoryServerError):
    pass


class ProviderError(MemoryServerError):
    """`retry_after`: seconds that the provider asks to be left alone for; 0 where it does not say."""

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class ProviderMissing(ProviderError):
    pass


class ProviderRejected(ProviderError):
    pass


class ProviderTruncated(ProviderRejected):
    pass


class StoreError(MemoryServerError):
    pass


class StoreBusy(StoreError):
    pass


class StoreDamaged(StoreError):
    pass


class StoreTooNew(StoreError):
    pass


class SettingsError(MemoryServerError):
    pass
