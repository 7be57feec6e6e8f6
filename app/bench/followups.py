"""How well follow-up messages are read, on real ones that were never trained on, beside a keyword baseline."""

from __future__ import annotations

from palomar.app.bench import SAMPLES, Measure
from palomar.data.followups.evaluation import evaluate

PRECISION_AIM, RECALL_AIM = 0.85, 0.6
"""Aims for ``dissatisfied`` over both sources: a wrong complaint misleads a reward more than a missed one."""


def measure(quick: bool) -> list[Measure]:
    """Precision and recall by source and label. `quick` changes nothing: it takes seconds."""
    labels = SAMPLES / "follow-up-labels" / "labels.jsonl"
    if not labels.exists():
        return [
            Measure("labelled follow-ups", None, "messages", 0, aim=1.0, better="at_least", note=f"no {labels.name}")
        ]
    measures = []
    for record in evaluate(labels, SAMPLES):
        of = f"{record['label']}, {record['source']}, {record['classifier']}"
        judged = record["classifier"] != "keywords" and (record["source"], record["label"]) == ("both", "dissatisfied")
        for name, counted, aim in (("precision", "predicted", PRECISION_AIM), ("recall", "labelled", RECALL_AIM)):
            value = record[name]
            measures.append(
                Measure(
                    f"{name} of {of}",
                    float(value) if isinstance(value, float) else None,
                    "fraction",
                    int(str(record[counted])),
                    aim=aim if judged else None,
                    better="at_least",
                )
            )
    return measures
