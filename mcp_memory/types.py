"""The vocabulary: frozen values that every other module speaks in.

Times are aware `datetime`s in UTC. Positions in the log (`seq`) are integers that only grow, over all scopes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Literal, get_args

Role = Literal["user", "assistant", "system", "tool"]
Kind = Literal["message", "text", "image", "step", "procedure", "digest"]

EpisodeClass = Literal["identity", "preference", "fact", "episodic", "tool_failure", "policy", "general"]
"""What an episode is good for: told by the caller, else by rule when it is stored, else by the model that extracts."""

UNCLASSIFIED: EpisodeClass = "general"

DEFAULT_IMPORTANCE = 0.5
"""Of an episode of which nothing else is said or found."""

ROLES: tuple[Role, ...] = ("user", "assistant", "system", "tool")
CLASSES: tuple[EpisodeClass, ...] = get_args(EpisodeClass)
KINDS: tuple[Kind, ...] = ("message", "text", "image", "step", "procedure", "digest")


@dataclass(frozen=True, slots=True)
class Scope:
    """The isolation boundary. Ids are compared exactly, byte for byte after UTF-8 encoding."""

    org: str
    project: str
    user: str


@dataclass(frozen=True, slots=True)
class Message:
    """What a caller hands in to be remembered; `occurred_at=None` means now."""

    content: str
    role: Role = "user"
    speaker: str = ""
    occurred_at: datetime | None = None
    agent_id: str = ""
    session_id: str = ""
    kind: Kind = "message"
    produced_for: str = ""
    importance: float = DEFAULT_IMPORTANCE
    category: EpisodeClass = UNCLASSIFIED
    tags: tuple[str, ...] = ()
    entities: tuple[str, ...] = ()
    blocks: tuple[Mapping[str, Any], ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    expires_at: datetime | None = None
    learn: bool = True


@dataclass(frozen=True, slots=True)
class Episode:
    """One utterance in the log, word for word.

    `importance` is in [0, 1]. `occurred_at` is when it was said, `created_at` when it was stored. With `learn` false
    no fact is ever drawn from it.
    """

    id: str
    seq: int
    content: str
    role: Role
    speaker: str
    produced_for: str
    agent_id: str
    session_id: str
    kind: Kind
    blocks: tuple[Mapping[str, Any], ...]
    occurred_at: datetime
    created_at: datetime
    importance: float
    category: EpisodeClass
    tags: tuple[str, ...]
    entities: tuple[str, ...]
    metadata: Mapping[str, Any]
    expires_at: datetime | None = None
    learn: bool = True

    @property
    def name(self) -> str:
        """Who said it, as a reader would call them."""
        return self.speaker or self.role


@dataclass(frozen=True, slots=True)
class Sighting:
    """What a ranking wants to know of an episode. `speaker` is "" for the user or the assistant, `said_at` in seconds since
    1970."""

    speaker: str
    role: Role
    said_at: float
    importance: float
    accesses: int


SILENCE = timedelta(minutes=30)
"""The unnamed session of a user is cut where nothing was said for longer than this."""

APART = timedelta(hours=12)
"""What was said in one session so long apart is not one conversation: it is no context, and neighbours lend each other
nothing."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What became of one message: its episode, and whether that was there before."""

    episode: Episode
    duplicate: bool


@dataclass(frozen=True, slots=True)
class Document:
    """An episode as it is indexed: its folded words, and the share of it that is questions."""

    seq: int
    words: Sequence[str]
    asks: float = 0.0


DerivativeKind = Literal["sentence", "context"]


@dataclass(frozen=True, slots=True)
class Derivative:
    """What is embedded. `sources` are the log positions of the episodes whose text it holds, the owner first."""

    kind: DerivativeKind
    sources: tuple[int, ...]
    text: str

    @property
    def seq(self) -> int:
        return self.sources[0]


@dataclass(frozen=True, slots=True)
class Link:
    """Two episodes that are alike, as positions of the log; `likeness` is in [0, 1], on the embedder's calibrated scale."""

    seq: int
    other: int
    likeness: float


@dataclass(frozen=True, slots=True)
class Feature:
    """A fact of the profile: `(category, tag, name)` names the slot, `value` reads like "prefers aisle seats".

    `citations` are ids of the episodes it rests on. A fact without `valid_to` is current.
    """

    id: str
    category: str
    tag: str
    name: str
    value: str
    importance: float
    confidence: float
    entities: tuple[str, ...]
    citations: tuple[str, ...]
    valid_from: datetime
    valid_to: datetime | None = None
    superseded_by: str = ""
    verified_at: datetime | None = None
    source: str = ""


INSTRUCTIONS_TAG = "instructions"
"""The tag of standing instructions: facts that bind the reader ("policy") rather than describe the user."""


@dataclass(frozen=True, slots=True)
class AddFeature:
    """State a fact. `citations` are log positions. With `single` true the slot holds one value at a time."""

    category: str
    tag: str
    feature: str
    value: str
    citations: tuple[int, ...] = ()
    single: bool = False
    importance: float = 0.5
    confidence: float = 0.8


@dataclass(frozen=True, slots=True)
class DeleteFeature:
    """End the current facts of a slot, or only the one with `value` where it is given."""

    category: str
    tag: str
    feature: str
    value: str = ""
    citations: tuple[int, ...] = ()


Command = AddFeature | DeleteFeature


HAND, CONSOLIDATION = "hand", "consolidation"
"""The sources of what a person decided, and of what merged and ended facts by itself; others are names of views."""


@dataclass(frozen=True, slots=True)
class Undo:
    """Let a decision count as never made. `key` stands for what it decided, so that it stays undone when a view is
    derived again; an undo can itself be undone."""

    key: int


@dataclass(frozen=True, slots=True)
class Decision:
    """One command applied, as the log keeps it. `source` says who decided: a view's name, `hand`, `consolidation`.

    `statement` is the same for all that say the same; `key` stands for this decision of this source at that time.
    """

    seq: int
    source: str
    created_at: datetime
    said_at: datetime
    slot: int
    command: Command | Undo
    statement: int
    key: int

    @property
    def citations(self) -> tuple[int, ...]:
        return () if isinstance(self.command, Undo) else self.command.citations


@dataclass(frozen=True, slots=True)
class Span:
    """The time for which a fact held, as the decisions about its slot tell: stated first by `decision`, and again by
    others. `number` counts the times that the same was stated before and had ended. `superseded_by` is the index of
    another span of the slot, -1 for none."""

    decision: Decision
    number: int
    single: bool
    importance: float
    confidence: float
    citations: tuple[int, ...]
    valid_from: datetime
    verified_at: datetime
    valid_to: datetime | None = None
    superseded_by: int = -1


@dataclass(frozen=True, slots=True)
class Summary:
    """What a session's summary says; `upto` is the position of the last episode that it covers."""

    text: str
    upto: int


Scalar = str | float | int | bool


@dataclass(frozen=True, slots=True)
class Period:
    """A moment (`first == last`) or a day, both ends counting. A time without a zone that it is compared with is one of
    `zone`."""

    first: datetime
    last: datetime
    zone: tzinfo = UTC


Value = Scalar | Period

Operator = Literal["=", "!=", "<", "<=", ">", ">="]


@dataclass(frozen=True, slots=True)
class Compare:
    field: str
    operator: Operator
    value: Value


@dataclass(frozen=True, slots=True)
class In:
    field: str
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Like:
    """`%` stands for any characters and `_` for one; after a backslash both, and the backslash, stand for themselves."""

    field: str
    pattern: str


@dataclass(frozen=True, slots=True)
class IsNull:
    field: str


@dataclass(frozen=True, slots=True)
class Not:
    operand: Filter


@dataclass(frozen=True, slots=True)
class And:
    operands: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Or:
    operands: tuple[Filter, ...]


Filter = Compare | In | Like | IsNull | Not | And | Or


@dataclass(frozen=True, slots=True)
class Selection:
    """Which episodes a question is about; an empty value is no condition. Both ends of the range count."""

    filter: Filter | None = None
    agent_id: str = ""
    session_id: str = ""
    since: datetime | None = None
    until: datetime | None = None
    kinds: tuple[Kind, ...] = ()

    def __bool__(self) -> bool:
        return self != EVERYTHING


EVERYTHING = Selection()


Order = Literal["relevance", "time"]
Mode = Literal["auto", "direct", "split", "chain"]

MODES: tuple[Mode, ...] = ("auto", "direct", "split", "chain")


@dataclass(frozen=True, slots=True)
class Question:
    """What a search is asked.

    `mode` is the strategy by which it is searched for; `direct` never asks a language model. `rewrites` are searched for
    beside the query: its parts, or what a chain looked for next. `upto` is the last position of the log that counts;
    `after` the last (score, position) that was given already, and `given` how many those were. "Last week" is seen from
    `asked_at`; None is now.
    """

    query: str
    selection: Selection = EVERYTHING
    limit: int = 10
    expand: int = 3
    order: Order = "relevance"
    mode: Mode = "direct"
    rewrites: tuple[str, ...] = ()
    upto: int | None = None
    after: tuple[float, int] | None = None
    given: int = 0
    asked_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Hit:
    """One answer of a search: an episode, its score in [0, 1], the signals behind it, and its neighbours in time order."""

    episode: Episode
    score: float
    why: Mapping[str, float]
    around: tuple[Episode, ...] = ()


@dataclass(frozen=True, slots=True)
class Near:
    """A fact that is close to a query, and the signals that make its score, which is in [0, 1]."""

    fact: Feature
    why: Mapping[str, float]

    @property
    def score(self) -> float:
        return sum(self.why.values())


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a view is behind the log in one scope, and why."""

    view: str
    episodes: int
    reason: str = ""
