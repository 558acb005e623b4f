"""Fixtures of the tests with other frameworks: the same strict OpenAI-compatible server as for agents of our own."""

from __future__ import annotations

from tests.agent.conftest import door, openai_server

__all__ = ["door", "openai_server"]
