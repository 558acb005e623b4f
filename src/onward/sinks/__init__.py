"""Sinks: where events are sent, as signed webhooks."""
