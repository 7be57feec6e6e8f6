"""Whether the agent's replies say something else: a shift of their embeddings, and replies of a new kind.

`palomar report` measures it (`measure`), since a sentence encoder costs seconds a cycle; this detector reads what was
kept. Of each cycle the last reply of a sample of `MOST_REPLIES` interactions is embedded, equal texts once. Then, of
the cycle against the reference and of each reference cycle against the others:

- **shift**: distance between the mean embeddings;
- **new kinds**: replies farther from all centres of the others' replies (k-means on one half of them) than 99 % of the
  other half are. The densest place among them names the new kind, by an exemplar.

Fires where one is beyond what the reference cycles allow at half of `RATE` each (`palomar.detectors.leave_one_out`).
Blind to: what the encoder does not tell apart (numbers, order, negation in part: it looks at 256 tokens); a new kind of
fewer replies than the sample would hold; tool calls and edits that are not in the reply. Says nothing of whether the
new is better.
Source: all-MiniLM-L6-v2, bundled (`palomar.data.followups.encoder`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from palomar.data.derived import derived
from palomar.data.findings import Evidence, Finding, Report, Unassessed
from palomar.data.followups.encoder import Encoder
from palomar.data.schema import Interaction, Step
from palomar.detectors.checks._examples import rows, view
from palomar.detectors.detector import Example, View, detector
from palomar.detectors.leave_one_out import SHORTEST, beyond, too_many, unready
from palomar.detectors.sampling import sample

Floats = npt.NDArray[np.float64]

NAME = "texts"
RATE = 5 / 1000
"""False alarms a cycle over both."""
MOST_REPLIES = 200
FEWEST_REPLIES = 30
CENTRES = 12
FAR = 0.99
"""Share of held-out reference replies that lie nearer to a centre than "far"."""
_CHARS = 4_000  # of a reply that are embedded; the encoder looks at its ends
_VERSION = "3"


class _WordsEncoder:
    """Counts words in 32 places: enough for the examples, whose replies share words or do not."""

    fingerprint = "words-32"

    def encode(self, texts: Sequence[str]) -> Floats:
        vectors = np.zeros((len(texts), 32))
        for row, text in enumerate(texts):
            for word in text.split():
                vectors[row, sum(word.encode()) % 32] += 1
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
        return vectors


def _replies(folder: Path, *, last: str, measured: bool = True) -> View:
    """Eight cycles of replies from one stock of words, and one in which a third of them say ``last``."""
    rng = np.random.default_rng(5)
    words = ["fixed", "the", "loop", "and", "ran", "all", "tests", "so", "it", "passes", "now", "see", "main"]
    tables, records = {}, {}
    for cycle in range(9):
        tables[cycle] = rows(cycle, 60)
        said = [" ".join(rng.choice(words, 8)) for _ in range(60)]
        if cycle == 8:
            said = [last if index % 3 == 0 and last else text for index, text in enumerate(said)]
        records[cycle] = [
            Interaction(
                interaction_id=f"c{cycle}-{index:05d}",
                source="example",
                origin="example",
                cycle=cycle,
                steps=(Step(author="agent", role="assistant", text=text),),
            )
            for index, text in enumerate(said)
        ]
    seen = view(folder, tables)
    for cycle, each in records.items():
        seen.lake.append_interactions(each, cycle)
    if measured:
        measure(seen, _WordsEncoder())
    return seen


EXAMPLES = (
    Example(
        "a third of the replies refuse, in words of their own",
        lambda folder: _replies(folder, last="zq xk vw zq xk vw"),
        "fires",
    ),
    Example("other sentences of the same words", lambda folder: _replies(folder, last=""), "clear"),
    Example("nobody measured the texts", lambda folder: _replies(folder, last="", measured=False), "not_assessable"),
)


@detector(NAME, examples=EXAMPLES)
def texts(seen: View) -> Report:
    """Tell what the kept measurement of the cycle's replies says."""
    why = unready(seen)
    told = None if why else _kept(seen)
    if told is None:
        why = why or f"the replies were not measured; run: palomar report --cycle {seen.cycle}"
        return Report(NAME, unassessed=(Unassessed("everything", why),))
    if told["why"]:
        return Report(NAME, unassessed=(Unassessed("everything", told["why"]),))
    usual = told["usual"]
    shift = beyond(told["shift"], [each["shift"] for each in usual], RATE / 2)
    counts, sizes = [each["far"] for each in usual], [each["n"] for each in usual]
    far = too_many(told["far"], told["n"], counts, sizes, RATE / 2)
    about = {
        "detector": NAME,
        "severity": "warns",
        "n": told["n"],
        "error_control": (
            f"{RATE * 1000:g} alarms per 1000 cycles over shift and new kinds: prediction limits over {len(usual)} "
            f"reference cycles, each against the others"
        ),
        "detail": {"encoder": told["encoder"]},
    }
    findings = []
    if shift.out:
        distance, before = shift.value, shift.usual
        findings.append(
            Finding(
                **about,
                sentence=(
                    f"the replies moved: their mean embedding lies {distance:.3f} from the reference's, where "
                    f"reference cycles lie {before:.3f} from each other (limit {shift.limit:.3f}), "
                    f"n={told['n']:,} replies"
                ),
                statistic="shift",
                unit="distance of mean embeddings, 0 to 2",
                before=before,
                after=distance,
                effect=distance - before,
                test=shift.t,
                threshold=shift.threshold,
                smallest=shift.limit - before,
                evidence=Evidence(tuple(told["moved"]), tuple(told["random"]), tuple(told["counter"])),
            )
        )
    if far.out:
        findings.append(
            Finding(
                **about,
                sentence=(
                    f"replies of a new kind: {far.count} of {far.n} lie far from all kinds of the reference, where "
                    f"{far.expected:.1f} were to be expected and {far.smallest} are too many; {told['kind_size']} of "
                    f"them are alike, for example {told['new'][0]}"
                ),
                statistic="new_kinds",
                unit="share of replies",
                before=far.expected / far.n,
                after=far.count / far.n,
                effect=(far.count - far.expected) / far.n,
                test=float(far.count),
                threshold=float(far.smallest - 1),
                smallest=far.smallest / far.n,
                evidence=Evidence(tuple(told["new"]), tuple(told["random"]), tuple(told["counter"])),
            )
        )
    power = (
        f"a distance of means above {shift.limit:.3f}, or {far.smallest} of {far.n} replies of a new kind, "
        f"would have been seen"
    )
    return Report(NAME, tuple(findings), 2, (), power)


# -- measuring --------------------------------------------------------------------------------------------------------


def measure(seen: View, encoder: Encoder | None = None) -> None:
    """Embed a sample of the replies and keep how they compare; each cycle is embedded once.

    Without an encoder by the bundled one.
    Raises ValueError where the cycle has no reference.
    """
    if why := unready(seen):
        raise ValueError(f"the replies cannot be compared: {why}")
    assert seen.cycle is not None
    told = _tell(seen, seen.cycle, seen.reference, _Lazy(encoder))
    _kept_table(seen, pa.table({"told": [json.dumps(told)]}))


class _Lazy:
    """The encoder, loaded when a text has to be embedded: torch takes seconds, and most cycles are kept."""

    def __init__(self, encoder: Encoder | None) -> None:
        self._encoder = encoder
        self.name = "bundled" if encoder is None else encoder.fingerprint
        """Fingerprint of an encoder that was given; the bundled one goes by that word, since hashing it takes long."""

    def encode(self, said: Sequence[str]) -> Floats:
        if self._encoder is None:
            from palomar.data.followups.encoder import TransformerEncoder

            self._encoder = TransformerEncoder()
        return self._encoder.encode(said)


def _tell(seen: View, cycle: int, reference: Sequence[int], encoder: _Lazy) -> dict[str, Any]:
    parts = {each: _embedded(seen, each, encoder) for each in (*reference, cycle)}
    held = [each for each in reference if len(parts[each][0]) >= FEWEST_REPLIES]
    n = len(parts[cycle][0])
    if n < FEWEST_REPLIES or len(held) < SHORTEST:
        why = f"{n} replies, and {len(held)} reference cycles with {FEWEST_REPLIES}; "
        return {"why": f"{why}{FEWEST_REPLIES} and {SHORTEST} are needed"}
    usual = [_compare(parts[each], [parts[other] for other in held if other != each]) for each in held]
    now = _compare(parts[cycle], [parts[each] for each in held])
    kept = ("shift", "far", "n")
    return now | {"why": "", "encoder": encoder.name, "usual": [{name: each[name] for name in kept} for each in usual]}


Embedded = tuple[list[str], Floats]
"""Ids of interactions, and the embeddings of their replies, (n, dimensions), each of length 1."""


def _compare(now: Embedded, others: Sequence[Embedded]) -> dict[str, Any]:
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    ids, vectors = now
    mean = np.mean([part.mean(axis=0) for _, part in others], axis=0)
    apart = vectors.mean(axis=0) - mean
    fitted, held_out = (np.concatenate([part[half::2] for _, part in others]) for half in (0, 1))
    centres = min(CENTRES, len(np.unique(fitted.round(6), axis=0)))
    with threadpool_limits(1):
        clusters = KMeans(centres, n_init=1, random_state=0).fit(fitted).cluster_centers_
    limit = float(np.quantile(_nearest(held_out, clusters), FAR))
    distance = _nearest(vectors, clusters)
    far = np.flatnonzero(distance > limit + 1e-9)
    alike = vectors[far] @ vectors[far].T > 1 - limit**2 / 2  # no farther from each other than "far" is from a centre
    exemplar = int(np.argmax(alike.sum(axis=0))) if len(far) else 0
    order = far[np.argsort(-(vectors[far] @ vectors[far[exemplar]]), kind="stable")] if len(far) else far
    along = np.argsort(-(vectors @ apart), kind="stable")
    return {
        "shift": float(np.linalg.norm(apart)),
        "far": len(far),
        "n": len(ids),
        "new": [ids[index] for index in order[:5]],
        "kind_size": int(alike[exemplar].sum()) if len(far) else 0,
        "moved": [ids[index] for index in along[:5]],
        "counter": [ids[int(np.argmin(distance))]],
        "random": ids[:2],  # in random order
    }


def _nearest(vectors: Floats, centres: Floats) -> Floats:
    """Distance of each vector to the nearest centre, (n,)."""
    squares = (vectors**2).sum(axis=1)[:, None] + (centres**2).sum(axis=1) - 2 * vectors @ centres.T
    nearest: Floats = np.sqrt(np.maximum(squares.min(axis=1), 0))
    return nearest


def _embedded(seen: View, cycle: int, encoder: _Lazy) -> Embedded:
    """Embeddings of a cycle's sample of replies; kept beside the lake, without the texts."""
    table = derived(
        seen.lake,
        "replies",
        cycle,
        version=f"{_VERSION} {encoder.name}",
        parts=[("interactions", [cycle]), ("observations", [cycle])],
        make=lambda: _embed(seen, cycle, encoder),
    )
    vectors = table["vector"].combine_chunks()
    flat = vectors.flatten().to_numpy().astype(np.float64)
    return table["interaction_id"].to_pylist(), flat.reshape(len(table), -1) if len(table) else np.zeros((0, 1))


def _embed(seen: View, cycle: int, encoder: _Lazy) -> pa.Table:
    schema = pa.schema([pa.field("interaction_id", pa.string()), pa.field("vector", pa.list_(pa.float32()))])
    wanted = sample(seen, cycle, MOST_REPLIES)["interaction_id"].to_pylist()
    with seen.lake.connect(["interactions"], [cycle]) as connection:
        sql = "SELECT interaction_id FROM interactions WHERE interaction_id IN (SELECT unnest(?))"
        # Transcripts may be gone where observations were kept.
        stored = {interaction for (interaction,) in connection.execute(sql, [wanted]).fetchall()}
    wanted = [interaction for interaction in wanted if interaction in stored]
    said = {record.interaction_id: _reply(record) for record in seen.lake.interactions(wanted)}
    said = {interaction: text for interaction, text in said.items() if text}
    if not said:
        return schema.empty_table()
    different = sorted(set(said.values()))
    vectors = encoder.encode(different)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    place = {text: index for index, text in enumerate(different)}
    rows_of = vectors[[place[text] for text in said.values()]].astype(np.float32)
    return pa.table({"interaction_id": list(said), "vector": list(rows_of)}, schema)


def _reply(record: Interaction) -> str:
    """The agent's last words on the main line; empty where it said nothing."""
    said = [step.text for step in record.steps if step.author == "agent" and step.branch is None and step.text]
    return said[-1].strip()[:_CHARS] if said else ""


# -- kept beside the lake ---------------------------------------------------------------------------------------------


class _NotKeptError(Exception):
    pass


def _kept(seen: View) -> dict[str, Any] | None:
    try:
        told: dict[str, Any] = json.loads(_kept_table(seen, None)["told"][0].as_py())
    except _NotKeptError:
        return None
    return told


def _kept_table(seen: View, table: pa.Table | None) -> pa.Table:
    def make() -> pa.Table:
        if table is None:
            raise _NotKeptError
        return table

    return derived(
        seen.lake,
        NAME,
        seen.cycle,
        version=f"{_VERSION} {list(seen.reference)}",
        parts=[("interactions", [*seen.reference, seen.cycle])],
        make=make,
    )
