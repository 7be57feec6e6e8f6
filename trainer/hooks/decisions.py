"""Reads what the gate decided, from the decision file or from the API, so that doubt is never read as promote.

A reading is ``promote`` only where all of this holds: the source answers, what it says is a whole decision in a format
that is known, it is of this run and about this candidate, it is not older than the maximal age nor from the future, it
has not expired, and no later decision was seen before. Else it is ``unknown``, with why, and counts as a hold.

``block`` needs less, since it is the safe side: age and expiry do not end it, and once read it stands until a later
decision about the same candidate is read. (The file has the run's last decision only, whichever candidate it is about.)

Standard library only.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, Protocol

FILE_FORMAT = "palomar-decision/1"
"""As `palomar.app.gate_exports` writes it; docs/gate.md describes it."""

Word = Literal["promote", "hold", "block", "unknown"]
Why = Literal[
    "",
    "no_file",
    "unreadable",
    "no_decision",
    "unreachable",
    "other_format",
    "other_run",
    "other_candidate",
    "unknown_verdict",
    "incomplete",
    "too_old",
    "from_the_future",
    "expired",
    "went_back",
]
"""Why a reading is unknown; empty where it is not."""

DAY_S = 24 * 3600.0
_MOST_BYTES = 4 << 20
_CLOCKS_APART = timedelta(minutes=5)
"""How far the writer's clock may be ahead of ours."""


@dataclass(frozen=True)
class Reading:
    """What is known of one candidate."""

    word: Word
    candidate: str
    why: Why = ""
    sentence: str = ""
    """The decision's, or what is the matter; text for people, not markup."""
    sequence: int | None = None
    decision_id: str | None = None

    @property
    def promoted(self) -> bool:
        """True for a promote, and for nothing else."""
        return self.word == "promote"


class Source(Protocol):
    """Where decisions are read."""

    def read(self, candidate: str) -> Reading:
        """What is known of the candidate; never raises over what is read."""
        ...


def _now() -> datetime:
    return datetime.now(UTC)


class _Judge:
    """Turns what was read into readings, and remembers what must not be forgotten."""

    def __init__(self, run_id: str, max_age_s: float, clock: Callable[[], datetime], *, one_place: bool) -> None:
        """``one_place``: whatever the candidate, the same place is read, in which numbers only grow."""
        if not max_age_s > 0:
            raise ValueError(f"max_age_s: expected seconds above 0, got {max_age_s!r}")
        self._run_id = run_id
        self._max_age_s = max_age_s
        self._clock = clock
        self._one_place = one_place
        self._highest: dict[str, int] = {}
        self._blocked: dict[str, Reading] = {}

    def reading(self, said: Any, candidate: str) -> Reading:
        found = self._of(said, candidate)
        about_it = isinstance(said, dict) and said.get("candidate") == candidate
        if found.word == "block":
            self._blocked[candidate] = found
        elif found.word in ("promote", "hold") or (about_it and found.why in ("too_old", "expired")):
            before = self._blocked.get(candidate)
            if before is not None and (found.sequence or 0) > (before.sequence or 0):
                del self._blocked[candidate]
        return self._blocked.get(candidate, found)

    def doubt(self, candidate: str, why: Why, sentence: str) -> Reading:
        return self._blocked.get(candidate, Reading("unknown", candidate, why, sentence))

    def _of(self, said: Any, candidate: str) -> Reading:
        def unknown(why: Why, sentence: str) -> Reading:
            return Reading("unknown", candidate, why, sentence, sequence, decision_id)

        sequence: int | None = None
        decision_id: str | None = None
        if not isinstance(said, dict) or said.get("format") != FILE_FORMAT:
            return unknown("other_format", f"not a decision in the format {FILE_FORMAT}")
        decision_id = said["decision_id"] if isinstance(said.get("decision_id"), str) else None
        if type(said.get("sequence")) is int and said["sequence"] > 0:
            sequence = said["sequence"]
        if said.get("run_id") != self._run_id:
            return unknown("other_run", f"it is of the run {said.get('run_id')!r}")
        place = "" if self._one_place else candidate
        highest = self._highest.get(place, 0)
        self._highest[place] = max(highest, sequence or 0)
        if said.get("candidate") != candidate:
            return unknown("other_candidate", f"it is about {said.get('candidate')!r}")
        word = said.get("verdict")
        sentence = said["sentence"] if isinstance(said.get("sentence"), str) else ""
        if word == "block":
            return Reading("block", candidate, "", sentence, sequence, decision_id)
        if word not in ("promote", "hold"):
            return unknown("unknown_verdict", f"the verdict {word!r} is not known")
        decided, ends = _time(said.get("decided_at")), _time(said.get("expires_at"))
        endless = "expires_at" in said and said["expires_at"] is None
        if sequence is None or decision_id is None or decided is None or (ends is None and not endless):
            return unknown("incomplete", "the decision lacks its number, id, time, or end")
        if sequence < highest:
            return unknown("went_back", f"decision {sequence}, after {highest} was read")
        now = self._clock()
        if decided > now + _CLOCKS_APART:
            return unknown("from_the_future", f"decided at {decided.isoformat()}")
        if (now - decided).total_seconds() > self._max_age_s:
            return unknown("too_old", f"decided at {decided.isoformat()}, more than {self._max_age_s:g} s ago")
        if ends is not None and ends <= now:
            return unknown("expired", f"it stood until {ends.isoformat()}")
        return Reading(word, candidate, "", sentence, sequence, decision_id)


class DecisionFile:
    """The file that ``palomar gate --decision-file`` writes.

    ``max_age_s``: a promote or a hold that was decided longer ago is unknown; ``math.inf`` for no limit.
    """

    def __init__(
        self, path: Path | str, run_id: str, *, max_age_s: float = DAY_S, clock: Callable[[], datetime] = _now
    ) -> None:
        self.path = Path(path)
        self._judge = _Judge(run_id, max_age_s, clock, one_place=True)

    def read(self, candidate: str) -> Reading:
        """What the file says of the candidate."""
        try:
            with self.path.open("rb") as file:
                raw = file.read(_MOST_BYTES + 1)
        except FileNotFoundError:
            return self._judge.doubt(candidate, "no_file", f"there is no file {self.path}")
        except OSError as exc:
            return self._judge.doubt(candidate, "unreadable", f"{self.path}: {exc.strerror}")
        said = _parsed(raw)
        if said is None:
            return self._judge.doubt(candidate, "unreadable", f"{self.path} is not whole JSON")
        return self._judge.reading(said, candidate)


class DecisionApi:
    """``GET /v1/gate/CANDIDATE`` of ``palomar serve``; the token needs the role ``read``. It decides nothing."""

    def __init__(
        self,
        url: str,
        token: str,
        run_id: str,
        *,
        max_age_s: float = DAY_S,
        timeout_s: float = 5.0,
        clock: Callable[[], datetime] = _now,
    ) -> None:
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise ValueError(f"url: expected http:// or https://, got {url!r}")
        self._url = url.rstrip("/")
        self._token = token
        self._timeout_s = timeout_s
        self._judge = _Judge(run_id, max_age_s, clock, one_place=False)
        self._opener = urllib.request.build_opener(_NoRedirect())

    def read(self, candidate: str) -> Reading:
        """What the API says of the candidate."""
        where = f"{self._url}/v1/gate/{urllib.parse.quote(candidate, safe='')}"
        request = urllib.request.Request(where, headers={"Authorization": f"Bearer {self._token}"})
        try:
            with self._opener.open(request, timeout=self._timeout_s) as answer:
                status, raw = answer.status, answer.read(_MOST_BYTES + 1)
        except urllib.error.HTTPError as exc:
            exc.close()
            if exc.code == 404:
                return self._judge.doubt(candidate, "no_decision", "nothing was decided about it")
            return self._judge.doubt(candidate, "unreachable", f"the API answers {exc.code}")
        except (
            Exception
        ) as exc:  # sockets, TLS, http.client: whatever a network does is doubt, not a crash of a training
            return self._judge.doubt(candidate, "unreachable", f"the API does not answer: {type(exc).__name__}")
        said = _parsed(raw)
        if status != 200 or said is None:
            return self._judge.doubt(candidate, "unreadable", f"status {status}, and no whole JSON")
        return self._judge.reading(said, candidate)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows none: the token would go where the other end says."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _parsed(raw: bytes) -> Any:
    """What the JSON says; None where it is not whole, or too large."""
    if len(raw) > _MOST_BYTES:
        return None
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


def _time(said: Any) -> datetime | None:
    """A moment with its zone; None for anything else."""
    if not isinstance(said, str):
        return None
    try:
        found = datetime.fromisoformat(said)
    except ValueError:
        return None
    return found if found.tzinfo is not None else None
