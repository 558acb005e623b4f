"""completion: the scripts for bash, zsh and fish. Each runs `onward __complete` at every Tab (completing.py)."""

from __future__ import annotations

from argparse import Namespace

from onward.cli.output.text import machine_readable

BASH = """\
# onward: completion for bash. Add this to ~/.bashrc:  source <(onward completion bash)
_onward() {
    local IFS=$'\\n'
    COMPREPLY=($("${COMP_WORDS[0]}" __complete bash "${COMP_LINE:0:COMP_POINT}" 2>/dev/null))
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace
    return 0
}
complete -o default -F _onward onward
"""

ZSH = """\
#compdef onward
# onward: completion for zsh. Add this to ~/.zshrc, after compinit:  source <(onward completion zsh)
_onward() {
    local -a found
    found=("${(@f)$("$words[1]" __complete zsh "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    found=(${found:#})
    if (( $#found )); then _describe -V onward found; else _files; fi
}
compdef _onward onward
"""

FISH = """\
# onward: completion for fish. Save this as ~/.config/fish/completions/onward.fish
complete -c onward -f -a '(onward __complete fish (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'
complete -c onward -l out -r -F
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def completion(args: Namespace) -> int:
    """`onward completion`."""
    script = SCRIPTS[args.shell]
    print(machine_readable({"shell": args.shell, "script": script}) if args.json else script, end="\n" * args.json)
    return 0
