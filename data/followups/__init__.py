"""Users' follow-up messages, classed as dissatisfied, satisfied, neutral, or unclear. See docs/followups.md."""

from palomar.data.followups.classifier import FollowUp, FollowUpClassifier
from palomar.data.followups.training import train_head

__all__ = ["FollowUp", "FollowUpClassifier", "train_head"]
