"""Consolidation: bring everything that is derived up to date, and report what that gave. No episode is ever erased."""

from __future__ import annotations

from dataclasses import dataclass

from mcp_memory.types import Lag


@dataclass(frozen=True, slots=True)
class Report:
    """`derived` counts the episodes that each view was brought forward by; `lags` is what is still behind."""

    derived: dict[str, int]
    facts_before: int
    facts_after: int
    lags: tuple[Lag, ...]
    dry_run: bool

    @property
    def more(self) -> bool:
        """Whether another call would go on."""
        return any(not lag.reason for lag in self.lags) and not self.dry_run
