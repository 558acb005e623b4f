"""docs/cli.md, made from the parser: `python -m rig.commands > docs/cli.md`. A test holds that it is up to date."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from onward.cli.args.parser import EPILOG, build

HEAD = """\
# The command line

This page is generated from the parser by `python -m rig.commands`; `onward COMMAND --help` prints the same. For a tour of ten
minutes see the [quickstart](quickstart.md).

- Every command takes `--db URL`, `--url URL` and `--json`, before or after its name. With `--url` (or `ONWARD_URL`) it asks a server
  instead of the database, and needs no access to the database: [the command line of a server](guides/clients.md#the-command-line-of-a-server).
  `--key-file FILE` and `--ca-file FILE` go with it. With `--json` a command prints one JSON document on stdout,
  or a line for each item if it streams (`follow`, `submit --follow`, `worker`, `serve`). An error is
  `{"error": {"code", "message", …}}` there, and a sentence on stderr.
- Ids of tasks, approvals, questions, artifacts, deliveries and keys may be shortened to their first or last characters. If that
  matches more than one, the error lists them (`candidates` in JSON).
- If stdout is no terminal, or with `NO_COLOR`, there are no colours and no moving parts. Tables are cut only to fit a terminal.
- Control characters in names, results and messages of tasks are printed as escapes.
- `source <(onward completion bash)` completes commands, options, ids and names; zsh and fish likewise.

"""


def commands(
    parser: argparse.ArgumentParser, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser, str]]:
    """All commands below a parser, with their words and their sentences."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            told = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, below in action.choices.items():
                yield (*path, name), below, told[name]
                yield from commands(below, (*path, name))


def page() -> str:
    """The whole page."""
    found = list(commands(build()))
    rows = [
        f"| [`onward {' '.join(path)}`](#{_anchor(path)}) | {_cell(told)} |"
        for path, _, told in found
        if len(path) == 1
    ]
    status, _, rest = EPILOG.partition("\n\n")
    codes = [line.strip().partition("  ") for line in status.splitlines()[1:]]
    parts = [
        HEAD,
        "## Exit status\n\n| status | means |\n|---|---|\n",
        *[f"| {code} | {text.strip()} |\n" for code, _, text in codes],
        f"\n{' '.join(rest.split())}\n\n## Commands\n\n| command | what it does |\n|---|---|\n",
        "\n".join(rows),
        "\n",
        *[_section(path, parser, told) for path, parser, told in found],
    ]
    return "".join(parts)


def _section(path: tuple[str, ...], parser: argparse.ArgumentParser, told: str) -> str:
    title = f"\n## onward {' '.join(path)}\n\n" if len(path) == 1 else f"\n### onward {' '.join(path)}\n\n"
    lines = [title, told[0].upper() + told[1:] + ("" if told.endswith("?") else "."), "\n"]
    wanted = [action for action in parser._actions if not _everywhere(action)]
    if wanted:
        lines += [
            "\n| argument | |\n|---|---|\n",
            *[f"| `{_name(action)}` | {_cell(action.help or '')} |\n" for action in wanted],
        ]
    if parser.epilog:
        lines += ["\n```text\n", parser.epilog.rstrip(), "\n```\n"]
    return "".join(lines)


def _everywhere(action: argparse.Action) -> bool:
    return action.dest in {"help", "db", "url", "key_file", "ca_file", "json"} or isinstance(
        action, argparse._SubParsersAction
    )


def _name(action: argparse.Action) -> str:
    metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    if action.option_strings:
        names = ", ".join(action.option_strings)
        value = f" {metavar}" if action.nargs != 0 else ""
        return f"{names}{f' [{metavar}]' if action.nargs == '?' else value}"
    return f"[{metavar}]" if action.nargs == "?" else metavar


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _anchor(path: tuple[str, ...]) -> str:
    return "-".join(("onward", *path))


if __name__ == "__main__":
    print(page(), end="")
