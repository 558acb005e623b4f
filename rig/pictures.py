"""Pictures of the console, made from the real thing: the showcase is filled and served, and a browser looks at it.

    python -m rig.pictures FOLDER         PNGs of each page, wide, on a tablet and on a phone, light and dark
    python -m rig.pictures docs --readme  the one in the README: console.png

A machine without fonts of its own shows DejaVu; `apt install fonts-inter` and the like make nicer pictures.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rig.server import free_port

SIZES = {"wide": (1440, 900), "tablet": (820, 1180), "phone": (390, 844)}


@contextmanager
def showcase(folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The address of the showcase, and the ids of what is worth a look."""
    filled = subprocess.run(
        [sys.executable, "-m", "rig.showcase", str(folder)], capture_output=True, text=True, check=True
    )
    ids = dict(line.split("\t") for line in filled.stdout.splitlines() if "\t" in line)
    database, port = f"sqlite:///{folder.resolve()}/showcase.db", str(free_port())
    command = [sys.executable, "-m", "onward", "serve", "rig.showcase:app", "--port", port]
    env = {**os.environ, "SHOWCASE_DB": database, "ONWARD_DB": database}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        assert server.stdout is not None
        try:
            for line in server.stdout:
                if " ready:" in line:
                    break
            yield f"http://127.0.0.1:{port}/", ids
        finally:
            server.terminate()


def places(ids: dict[str, str]) -> dict[str, str]:
    """What there is to see, by the name of its picture."""
    return {
        "overview": "/",
        "tasks": "/tasks",
        "inbox": "/inbox",
        "queues": "/queues",
        "schedules": "/schedules",
        "deliveries": "/deliveries",
        "usage": "/usage",
        "system": "/system",
        "waiting": "/tasks?state=waiting&state=failed&state=pending",
        "agent": f"/tasks/{ids['agent-done']}",
        "conversation": f"/tasks/{ids['agent-done']}?tab=conversation",
        "state": f"/tasks/{ids['agent-done']}?tab=state",
        "artifacts": f"/tasks/{ids['agent-done']}?tab=artifacts",
        "events": f"/tasks/{ids['agent-done']}?tab=events",
        "children": f"/tasks/{ids['launch']}?tab=children",
        "approval": f"/tasks/{ids['agent']}",
        "saga": f"/tasks/{ids['undone']}",
        "crash": f"/tasks/{ids['crash']}",
        "new": "/new?name=order.fulfil",
    }


def take(browser: Any, address: str, places: dict[str, str], folder: Path) -> None:
    for scheme in ("light", "dark"):
        for size, (width, height) in SIZES.items():
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            for name, where in places.items():
                shoot(page, f"{address}#{where}", folder / f"{name}-{size}-{scheme}.png")
            page.close()


def shoot(page: Any, address: str, path: Path) -> None:
    page.goto(address)
    page.wait_for_selector(".lamp[data-is=live]", state="attached")
    page.wait_for_timeout(700)
    page.screenshot(path=path)


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description="Make pictures of the console.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--readme", action="store_true", help="only console.png, for the README")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    path = os.environ.get("ONWARD_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as made, showcase(Path(made)) as (address, ids), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--disable-dev-shm-usage"])
        if asked.readme:
            page = browser.new_page(viewport={"width": 1200, "height": 720})
            shoot(page, f"{address}#{places(ids)['agent']}", asked.folder / "console.png")
        else:
            take(browser, address, places(ids), asked.folder)
        browser.close()


if __name__ == "__main__":
    main()
