"""Telling other systems what changed: webhooks, Slack, a model registry. See docs/notify.md."""
