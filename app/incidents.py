"""Incidents as people and programs see them: evidence and what became of it, timeline, cause, and the post-mortem.

Writing is `store.incidents`: each of its methods takes an actor and a reason and leaves its entry in the audit log, in
one transaction. Here they are read together, and checks are kept.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from palomar.app.visible import visible
from palomar.data.findings import Finding
from palomar.data.store import Store
from palomar.data.store.incidents import evidence_hash, subject
from palomar.data.store.records import AlarmVote, AuditEntry, AuditHead, Incident, PinnedFinding, StoredFinding
from palomar.detectors.check import Checked
from palomar.detectors.grouping import opens
from palomar.detectors.incidents import open_incidents
from palomar.detectors.precision import Precision, precisions
from palomar.detectors.runs import keep

Form = Literal["markdown", "html"]


@dataclass(frozen=True)
class Evidence:
    """A pinned finding, and what is known of the same thing by now."""

    pin: PinnedFinding
    intact: bool
    """Whether it is still what the audit log has the hash of."""
    again: Finding | None
    """The finding of the same cycle as it is kept now; None = the cycle was checked again without it."""
    latest: StoredFinding | None
    """The newest finding of the same thing; None where none is kept."""


@dataclass(frozen=True)
class Charge:
    """A reward term or rule, and how many of the pinned findings that open an incident are charged to it first."""

    name: str
    findings: int
    slices: tuple[str, ...]


@dataclass(frozen=True)
class IncidentView:
    """All that there is to know on an incident."""

    incident: Incident
    lead: PinnedFinding
    """What a person reads first: the first that was pinned."""
    evidence: tuple[Evidence, ...]
    """In the order in which they joined."""
    timeline: tuple[AuditEntry, ...]
    votes: tuple[AlarmVote, ...]
    charges: tuple[Charge, ...]
    """What it is charged to, the most findings first."""
    findings: int
    """Of those pinned, how many keep a cycle from passing."""
    checked: int | None
    """Newest cycle that was checked; None where no verdict is kept."""
    faults: tuple[int, ...]
    """Cycles from its first to its last in which a fault of measurement was found: there its numbers are in doubt."""
    good: int | None
    """Last cycle before it whose verdict was ``pass`` or ``warn``; None where there is none."""
    changes: tuple[str, ...]
    """What changed from that cycle to the one in which it opened, in words."""
    head: AuditHead
    """Of the audit log when this was read."""

    @property
    def quiet(self) -> bool:
        """Whether the newest checked cycle is one in which it was not seen any more."""
        return self.checked is not None and self.checked > self.incident.seen_cycle

    @property
    def again(self) -> int | None:
        """Of a resolved one: the newest cycle after the resolution's in which a pinned thing keeps it from passing.

        None = there is none. It need not reopen the incident: it may be accepted, silenced, or another incident's.
        """
        last = self.incident.resolved_cycle
        if last is None:
            return None
        newest = (each.latest for each in self.evidence if each.latest is not None and opens(each.latest.finding))
        return max((each.cycle for each in newest if each.cycle > last), default=None)


def keep_check(
    store: Store, run_id: str, checked: Checked, as_of: datetime | None = None, *, actor: str, reason: str = ""
) -> list[Incident]:
    """Keeps a check of a cycle in place of its last one, and opens or joins incidents by it; those that it concerns.

    For checks by hand; the loop calls `runs.keep` and `open_incidents` itself.
    """
    assert checked.cycle is not None
    keep(store, run_id, checked, as_of)
    store.audit_log.append(
        actor=actor,
        action="check.keep",
        subject=f"cycle:{run_id}/{checked.cycle}",
        reason=reason,
        detail={"verdict": checked.verdict.word, "findings": len(checked.findings)},
    )
    return open_incidents(store, run_id, checked.cycle)


def view(store: Store, number: int) -> IncidentView | None:
    """The incident with its evidence and history; None where there is none of that number."""
    incident = store.incidents.get(number)
    if incident is None:
        return None
    pins = store.incidents.pinned(number)
    timeline = store.audit_log.read(subject=subject(number))
    hashes = {name: value for entry in timeline for name, value in _logged(entry).items()}
    keeping = [pin for pin in pins if opens(pin.finding)]
    again = store.findings.several([pin.finding_id for pin in pins])
    latest = store.findings.newest_of(incident.run_id, [pin.key for pin in pins])
    verdicts = store.verdicts.read(incident.run_id)
    clear = [each.cycle for each in verdicts if each.cycle < incident.opened_cycle and each.verdict in ("pass", "warn")]
    good = max(clear, default=None)
    faults = store.findings.read(incident.run_id, reading="measurement_fault")
    return IncidentView(
        incident=incident,
        lead=pins[0],
        evidence=tuple(_evidence(pin, hashes.get(pin.finding_id), again, latest) for pin in pins),
        timeline=tuple(timeline),
        votes=tuple(store.incidents.votes(number)),
        charges=tuple(_charges(keeping)),
        findings=len(keeping),
        checked=max((each.cycle for each in verdicts), default=None),
        faults=tuple(
            sorted({each.cycle for each in faults if incident.opened_cycle <= each.cycle <= incident.seen_cycle})
        ),
        good=good,
        changes=tuple(changes_between(store, incident.run_id, good, incident.opened_cycle)),
        head=store.audit_log.head(),
    )


def plain_view(found: IncidentView) -> dict[str, Any]:
    """The incident as the command line and the API give it."""
    return {
        **asdict(found.incident),
        "findings": [
            {
                "finding_id": each.pin.finding_id,
                "key": each.pin.key,
                "cycle": each.pin.cycle,
                "why": each.pin.why,
                "keeps_from_passing": opens(each.pin.finding),
                "pinned_at": each.pin.pinned_at,
                "intact": each.intact,
                "pinned": asdict(each.pin.finding),
                "same_cycle_now": None if each.again is None else asdict(each.again),
                "latest": None if each.latest is None else asdict(each.latest.finding) | {"cycle": each.latest.cycle},
            }
            for each in found.evidence
        ],
        "timeline": [asdict(entry) for entry in found.timeline],
        "votes": [asdict(vote) for vote in found.votes],
        "charges": [asdict(charge) for charge in found.charges],
        "newest_checked_cycle": found.checked,
        "faulty_cycles": found.faults,
        "last_good_cycle": found.good,
        "changes_since": found.changes,
        "audit_log_head": str(found.head),
    }


def detector_precision(store: Store) -> list[Precision]:
    """How often each detector's alarms were useful, over all incidents of the store."""
    return precisions(store.incidents.detectors(), store.incidents.votes(), store.labels.read())


def post_mortem(found: IncidentView, form: Form, *, now: datetime | None = None) -> str:
    """The incident's history as a document, made from what is kept and nothing else.

    Text that others wrote stays text: HTML is escaped by Jinja, Markdown by `escaped_markdown`.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("palomar.app", "templates"),
        autoescape=form == "html",
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_shown if form == "html" else _shown_in_markdown,
    )
    environment.filters.update(number=_number, utc=_utc)
    environment.globals.update(told=told_of, ending=ending)
    template = environment.get_template(f"post_mortem.{'html' if form == 'html' else 'md'}.jinja")
    return template.render(view=found, incident=found.incident, now=_utc(now or datetime.now(UTC)))


def hand_over(found: IncidentView, *, now: datetime | None = None) -> str:
    """What the next person on duty needs, as plain text to be copied: made from the trail and nothing else."""
    incident, lead = found.incident, found.lead.finding
    state: str = incident.state if incident.resolution is None else f"resolved ({ending(incident)})"
    owner = "nobody has it" if incident.assignee is None else f"{incident.assignee} has it"
    lines = [
        f"Incident {incident.number}: {incident.title}",
        f"{state}, {owner}; run {incident.run_id}, opened in cycle {incident.opened_cycle} "
        f"({_utc(incident.opened_at)}), last seen in cycle {incident.seen_cycle}"
        + ("" if found.checked is None else f", newest checked cycle {found.checked}"),
        f"What: {lead.sentence}",
    ]
    if lead.reading is not None:
        lines.append(f"Reading: {lead.reading.replace('_', ' ')}")
    if found.charges:
        charged = (f"{each.name} ({each.findings} of {found.findings})" for each in found.charges[:3])
        lines.append(f"Charged first to: {', '.join(charged)}")
    doubt = ", ".join(map(str, found.faults))
    lines.append(f"Data: {f'IN DOUBT, faults of measurement in cycle {doubt}' if doubt else 'no fault found'}")
    since = "no cycle passed before it" if found.good is None else f"since cycle {found.good}, the last that passed"
    lines.append(f"Changed ({since}): {'; '.join(found.changes) or 'neither reward, checkpoint nor baseline'}")
    cause = "not named yet" if incident.cause is None else str(incident.cause["words"])
    lines.append(f"Root cause: {cause}")
    done = [entry for entry in found.timeline if entry.action not in ("incident.join", "incident.late")]
    lines.append("Done so far (UTC):")
    lines += [
        f"  {entry.at[:16].replace('T', ' ')} {entry.actor}: {told_of(entry)}"
        + (f": {entry.reason}" if entry.reason and entry.action != "incident.open" else "")
        for entry in done
    ]
    lines.append(f"As of {_utc(now or datetime.now(UTC))}, audit log {found.head.entries}:{found.head.hash[:12]}")
    indents = [line[: len(line) - len(line.lstrip())] for line in lines]
    return "\n".join(indent + _line(line) for indent, line in zip(indents, lines, strict=True)) + "\n"


def told_of(entry: AuditEntry) -> str:
    """What an entry of the timeline says was done, without its reason."""
    detail = entry.detail
    match entry.action.removeprefix("incident."):
        case "open":
            return f"opened by the check of cycle {detail.get('cycle')}"
        case "join":
            return "more findings joined"
        case "late":
            return "findings came late"
        case "reopen" if "cycle" in detail:
            return f"reopened by the check of cycle {detail['cycle']}"
        case "reopen":
            return "reopened"
        case "ack":
            return "acknowledged"
        case "assign":
            return f"assigned to {detail.get('to')}"
        case "comment":
            return "commented"
        case "action":
            return "action taken, which mitigates it" if detail.get("mitigates") else "action taken"
        case "cause":
            return "named the root cause"
        case "resolve":
            return f"resolved: {ending(detail)}"
        case "rate":
            return f"called the alarm {str(detail.get('vote')).replace('_', ' ')}"
    return entry.action


def ending(values: Any) -> str:
    """How an incident ended, in words; from an incident or from the detail of its entry in the log."""
    get = values.get if isinstance(values, dict) else lambda name: getattr(values, name)
    words = str(get("resolution")).replace("_", " ")
    until = get("until_cycle") if get("until_cycle") is not None else get("until")
    end = "" if until is None else f" until {f'cycle {until}' if isinstance(until, int) else _utc(until)}"
    return f"{words}{end}, as of cycle {get('resolved_cycle')}"


def escaped_markdown(text: str) -> str:
    """One line of text that Markdown shows as it is: it makes no link, image, HTML, emphasis, table or heading."""
    line = _line(text)
    line = re.sub(r"[\\`*\[\]<>|#~&$^{}]|(?<!\w)_|_(?!\w)", lambda match: f"\\{match[0]}", line)
    # Many renderers make links of bare addresses.
    line = re.sub(r"(?i)://|\bwww\.", lambda match: match[0].replace("/", "\\/").replace(".", "\\."), line)
    return re.sub(r"^(\d*)([-+.)=])(?=\s|$)", r"\1\\\2", line)


def _shown(value: Any) -> str:
    return "-" if value is None else _line(value)


def _shown_in_markdown(value: Any) -> str:
    return "-" if value is None else escaped_markdown(str(value))


def _line(text: object) -> str:
    return visible(" ".join(str(text).split()))


def _number(value: float | None) -> str:
    return "not known" if value is None else f"{value:.4g}"


def _utc(moment: datetime | str) -> str:
    if isinstance(moment, str):
        try:
            return _utc(datetime.fromisoformat(moment))
        except ValueError:
            return moment
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _logged(entry: AuditEntry) -> dict[str, str]:
    findings = entry.detail.get("findings")
    return {str(name): str(value) for name, value in findings.items()} if isinstance(findings, dict) else {}


def _evidence(
    pin: PinnedFinding, logged: str | None, again: Mapping[str, StoredFinding], latest: Mapping[str, StoredFinding]
) -> Evidence:
    now = again.get(pin.finding_id)
    return Evidence(
        pin=pin,
        intact=logged == evidence_hash(pin.finding),
        again=None if now is None else now.finding,
        latest=latest.get(pin.key),
    )


def _charges(pins: Sequence[PinnedFinding]) -> list[Charge]:
    first = [pin.finding.causes[0] for pin in pins if pin.finding.causes]
    counts = Counter(cause.name for cause in first)
    return [
        Charge(name, count, tuple(sorted({cause.slice for cause in first if cause.name == name})))
        for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]


def changes_between(store: Store, run_id: str, good: int | None, opened: int) -> list[str]:
    """What changed from the cycle that was good last (None: from the first) to another, in words."""
    records = [each for each in store.cycles.read(run_id, with_stages=False) if (good or 0) <= each.cycle <= opened]
    told = []
    for before, after in itertools.pairwise(records):
        if before.reward_version != after.reward_version:
            told.append(
                f"cycle {after.cycle}: reward {_short(before.reward_version)} -> {_short(after.reward_version)}"
            )
    served = list(dict.fromkeys(each.checkpoint_id for each in records))
    if len(served) > 1:
        told.append(f"checkpoints in service: {served[0]} -> {served[-1]} ({len(served) - 1} promotions)")
    baseline = [each for each in store.baselines.read(run_id) if (good or 0) < each.from_cycle <= opened]
    told += [f"cycle {each.from_cycle}: baseline moved by {each.actor}: {each.reason}" for each in baseline]
    return told


def _short(version: str | None) -> str:
    return "unknown" if version is None else version[:12]
