"""quotas: list and set the quotas of tenants."""

from __future__ import annotations

from argparse import Namespace

from rich.text import Text

from onward.cli.args import connect
from onward.cli.output.screen import Screen
from onward.cli.output.table import Column, fixed
from onward.cli.output.text import safe
from onward.core.tenant_quota import NAMES
from onward.core.view_json import to_json
from onward.core.views import QuotaUse, TenantUse

COLUMNS = (Column("TENANT"), fixed("QUOTA"), fixed("USED"), fixed("LIMIT"), Column("FROM", drop=1))
PAGE_SIZE = 1000
IN_DATABASE = frozenset({"queue_share", "tasks", "queues"})
"""Quotas whose use the database has. Each server process counts the others for itself: `GET /api/quotas` shows them."""


async def list_quotas(args: Namespace) -> int:
    """`onward quotas`."""
    screen = Screen(args)
    async with connect.open_backend(args) as backend:
        uses = list(await backend.quotas(limit=PAGE_SIZE))
        while page := await backend.quotas(uses[-1].tenant, PAGE_SIZE) if uses else []:
            uses += page
    rows = [row for use in uses for row in _rows(use)]
    empty = "no tenants: `onward keys create --tenant NAME …` creates a key for one"
    return screen.table({"tenants": [_json(use) for use in uses]}, COLUMNS, rows, empty)


async def set_quota(args: Namespace) -> int:
    """`onward quotas set`."""
    screen = Screen(args)
    values = {name: getattr(args, name) for name in NAMES if getattr(args, name) is not None}
    async with connect.open_backend(args, create=True) as backend:
        use = await backend.set_quota(args.tenant, values)
    return screen.table(_json(use), COLUMNS, _rows(use), "")


async def reset(args: Namespace) -> int:
    """`onward quotas reset`."""
    screen = Screen(args)
    async with connect.open_backend(args, create=True) as backend:
        use = await backend.reset_quota(args.tenant)
    return screen.table(_json(use), COLUMNS, _rows(use), "")


def _rows(use: TenantUse) -> list[tuple[Text, ...]]:
    return [
        (
            Text(safe(use.tenant)),
            Text(quota.name),
            Text("–" if quota.name not in IN_DATABASE else f"{quota.used:,}", "red" if _full(quota) else ""),
            Text(f"{quota.limit:,}" if quota.limit or quota.name == "priority" else "none"),
            Text("its own" if quota.own else "settings", "dim"),
        )
        for quota in use.quotas
    ]


def _full(quota: QuotaUse) -> bool:
    return quota.name in IN_DATABASE and quota.used is not None and 0 < quota.limit <= quota.used


def _json(use: TenantUse) -> dict[str, object]:
    """The use as over HTTP; null where this process, which is no server, cannot know it."""
    document = to_json(use)
    for quota in document["quotas"]:
        quota["used"] = quota["used"] if quota["name"] in IN_DATABASE else None
    return document
