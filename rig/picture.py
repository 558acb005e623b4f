"""docs/terminal.svg, made from the real thing: `python -m rig.picture > docs/terminal.svg`. The demo agent is served, told to free some
disk space, and followed on a terminal of 96 × 17; what stands there when it asks for an approval is the picture."""

from __future__ import annotations

import fcntl
import html
import os
import pty
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

import pyte

from rig.processes import Child

COLUMNS, ROWS = 96, 17
WIDTH, HEIGHT = 8.43, 19
"""Of a character, in pixels."""

PAPER, INK, DIM = "#11151c", "#d7dce5", "#7d8795"
INKS = {
    "default": INK, "black": DIM, "red": "#ff7b72", "green": "#7ee787", "brown": "#e3b341", "yellow": "#e3b341", "blue": "#79c0ff",
    "magenta": "#d2a8ff", "cyan": "#76e3ea", "white": INK, "brightblack": DIM,
}  # fmt: skip
BOLD = ' font-weight="bold"'
NBSP = "\N{NO-BREAK SPACE}"
"""Blanks that no viewer runs together."""

TYPED = "onward submit demo.agent '\"Free some disk space.\"' --follow"


def main() -> None:
    root = Path(__file__).parents[1]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("ONWARD", "OPENAI"))} | {
        "PYTHONPATH": str(root / "src")
    }
    with (
        tempfile.TemporaryDirectory() as folder,
        Child.module("onward", "serve", "--port", "0", cwd=Path(folder), env=env) as server,
    ):
        server.wait_for("ready:", timeout=30)
        screen = _followed(folder, env)
    print(svg(screen), end="")


def _followed(folder: str, env: dict[str, str]) -> pyte.Screen:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS - 1, COLUMNS, 0, 0))
    words = [sys.executable, "-m", "onward", "submit", "demo.agent", '"Free some disk space."', "--follow"]
    child = subprocess.Popen(
        words, stdin=slave, stdout=slave, stderr=slave, cwd=folder, env=env | {"TERM": "xterm-256color"}
    )
    os.close(slave)
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    stream.feed(f"\x1b[32m$\x1b[0m {TYPED}\r\n".encode())
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if select.select([master], [], [], 0.2)[0]:
            try:
                stream.feed(os.read(master, 65536).replace(b"\x1b[2m", b"\x1b[90m"))  # pyte knows no faint ink
            except OSError:
                break
    child.wait(20)
    return screen


def svg(screen: pyte.Screen) -> str:
    said = [number for number in range(ROWS) if screen.display[number].strip()]
    used = next((number for number in said if screen.display[number].startswith("onward: ")), said[-1] + 1)
    width, height = COLUMNS * WIDTH + 32, used * HEIGHT + 32
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img" '
        f'aria-label="{html.escape(TYPED, quote=True)}">',
        f'<rect width="100%" height="100%" rx="10" fill="{PAPER}"/>',
        '<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="14">',
    ]
    for number in range(used):
        lines += _row(screen, number)
    return "\n".join([*lines, "</g>", "</svg>"]) + "\n"


def _row(screen: pyte.Screen, number: int) -> list[str]:
    """Runs of one style; each is told its length, so that columns stand in line whatever the font is."""
    runs: list[tuple[int, str, str, bool]] = []
    for column in range(COLUMNS):
        cell = screen.buffer[number][column]
        ink = INKS.get(cell.fg, INK if cell.fg == "default" else f"#{cell.fg}" if len(cell.fg) == 6 else INK)
        if runs and runs[-1][2:] == (ink, cell.bold):
            runs[-1] = (runs[-1][0], runs[-1][1] + cell.data, ink, cell.bold)
        else:
            runs.append((column, cell.data, ink, cell.bold))
    return [
        _text(column, number, text.rstrip(), ink, BOLD if bold else "")
        for column, text, ink, bold in runs
        if text.strip()
    ]


def _text(column: int, number: int, text: str, ink: str, more: str) -> str:
    x, y, length = 16 + column * WIDTH, 30 + number * HEIGHT, len(text) * WIDTH
    shown = html.escape(text).replace(" ", NBSP)
    return f'<text x="{x:.1f}" y="{y}" fill="{ink}" textLength="{length:.1f}"{more}>{shown}</text>'


if __name__ == "__main__":
    main()
