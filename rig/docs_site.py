"""Hooks of the documentation site (mkdocs.yml): pages from outside docs/, and links to files that the site does not have."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}
"""Files at the root of the repository, and the pages that they are on the site."""

LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^):#]+)(#[^)]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages from outside docs/."""
    for name, page in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=_relink(text, "", page)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links out of docs/ at the pages of the site."""
    where = page.file.src_uri
    return markdown if where in PAGES.values() else _relink(markdown, posixpath.dirname(f"docs/{where}"), where)


def _relink(text: str, folder: str, page: str) -> str:
    """`text` with the links of a file in `folder` of the repository as those of `page` of the site."""

    def link(found: re.Match[str]) -> str:
        label, target, anchor = found[1], found[2], found[3] or ""
        path = posixpath.normpath(posixpath.join(folder, target))
        there = PAGES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        if there is None:  # a file of the repository that is not on the site, such as an example
            return f"{label} (`{path}`)" if label != path else f"`{path}`"
        return f"[{label}]({posixpath.relpath(there, posixpath.dirname(page) or '.')}{anchor})"

    return LINK.sub(link, text)
