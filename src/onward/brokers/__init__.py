"""Brokers: messages come in (`Onward.intake`), and events go out. The names that programs may import."""

from __future__ import annotations

from onward.brokers.message import Message

__all__ = ["Message"]
