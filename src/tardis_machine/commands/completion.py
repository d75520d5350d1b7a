"""`tardis-machine completion SHELL`: a script that completes commands, options and their values in bash, zsh or fish.

Invariant: the scripts are made from the tables of commands and options alone, and run no program while the user types.
"""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote

from ..settings import Option, Settings, path
from ..settings.catalogue import Catalogue
from ..settings.commands import COMMANDS, Command

__all__ = ["bash_script", "fish_script", "run", "zsh_script"]


def run(settings: Settings) -> int:
    """Prints the script; its first line says how to use it."""
    scripts = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}
    print(scripts[settings.shell](), end="")
    return 0


def _options_of(command: Command) -> list[Option]:
    catalogue = Catalogue(command)
    catalogue.load_all()
    return catalogue.options


def _flags_of(option: Option) -> list[str]:
    """How it is written; a switch also to turn it off."""
    flags = [] if option.positional else [f"--{name}" for name in option.names]
    return [*flags, f"--no-{option.name}"] if option.is_switch else flags


def _next_words() -> dict[str, dict[str, str]]:
    """The words that may follow each beginning of a command, with their help; '' is before the first."""
    following: dict[str, dict[str, str]] = {"": {}}
    for command in COMMANDS.values():
        first, _, second = command.name.partition(" ")
        following[""].setdefault(first, f"{first.capitalize()} commands" if second else command.help)
        if second:
            following.setdefault(first, {})[second] = command.help
    return following


_STANDARD = {"--help": "Prints what a command takes", "--version": "Prints the version"}

# Where nothing is found, `-o default` makes bash look for files, which is what most values are.
_BASH_HEAD = """\
# bash: tardis-machine completion bash > ~/.local/share/bash-completion/completions/tardis-machine
_tardis_machine() {
    local IFS=$' \\t\\n' word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} command=serve flags= choices=
    COMPREPLY=()
    # --flag=value is three words to bash.
    if [[ $word == = ]]; then
        word=
    elif [[ $before == = ]]; then
        before=${COMP_WORDS[COMP_CWORD - 2]}
    fi
"""
_BASH_TAIL = """\
    [[ $word == -* || ! $choices ]] && choices=$flags
    COMPREPLY=($(compgen -W "$choices" -- "$word"))
}
complete -o default -F _tardis_machine tardis-machine
"""


def bash_script() -> str:
    """For bash 3.2 and later."""
    lines = ['    case "${COMP_WORDS[*]:1:COMP_CWORD - 1} " in']
    lines += [f"    {quote(f'{name} ')}*) command={quote(name)} ;;" for name in COMMANDS]
    lines += [f"    {quote(f'{begun} ')}) choices={quote(' '.join(words))} ;;" for begun, words in _next_words().items()]
    lines += ["    esac", "    case $command in"]
    for command in COMMANDS.values():
        lines += _bash_case(command)
    return _BASH_HEAD + "\n".join([*lines, "    esac", ""]) + _BASH_TAIL


def _bash_case(command: Command) -> list[str]:
    options = _options_of(command)
    flags = [flag for option in options for flag in _flags_of(option)]
    lines = [f"    {quote(command.name)})", f"        flags={quote(' '.join([*flags, *_STANDARD]))}"]
    lines += [f"        choices={quote(' '.join(option.choices))}" for option in options if option.positional and option.choices]
    lines.append("        case $before in")
    valued = [option for option in options if _flags_of(option) and not option.is_switch]
    for option in valued:
        if option.choices:
            lines.append(f"        {'|'.join(_flags_of(option))}) choices={quote(' '.join(option.choices))} ;;")
    free = [flag for option in valued if not option.choices and not option.bare for flag in _flags_of(option)]
    return [*lines, f"        {'|'.join(free)}) return ;;", "        esac", "        ;;"]


_ZSH_HEAD = """\
#compdef tardis-machine
# zsh: tardis-machine completion zsh > "${fpath[1]}/_tardis-machine"
_tardis_machine() {
    local command=serve
    local -a next
    integer used=0
"""
_ZSH_TAIL = """\
    if (( $#next )); then
        _describe -t commands command next
        [[ $words[CURRENT] == -* ]] || return
    fi
    # _arguments counts from the command's last word.
    words=("$words[1]" "${(@)words[used + 2, -1]}")
    (( CURRENT -= used ))
    case $command in
"""
_ZSH_END = """\
    esac
}
if [[ $funcstack[1] == _tardis-machine ]]; then
    _tardis_machine "$@"
else
    compdef _tardis_machine tardis-machine
fi
"""


def zsh_script() -> str:
    """For the completion system of zsh 5."""
    lines = ['    case "${(j: :)words[2, CURRENT - 1]} " in']
    lines += [f"    ({quote(f'{name} ')}*) command={quote(name)} used={len(name.split())} ;;" for name in COMMANDS]
    for begun, words in _next_words().items():
        described = " ".join(quote(f"{word}:{help_}") for word, help_ in words.items())
        lines.append(f"    ({quote(f'{begun} ')}) used={len(begun.split())} next=({described}) ;;")
    lines += ["    esac", ""]
    cases: list[str] = []
    for command in COMMANDS.values():
        cases += [f"    ({quote(command.name)})", "        _arguments \\"]
        specs = [spec for option in _options_of(command) for spec in _zsh_specs(option)]
        specs += [quote(f"{flag}[{help_}]") for flag, help_ in _STANDARD.items()]
        cases += [f"            {spec} \\" for spec in specs[:-1]] + [f"            {specs[-1]}", "        ;;"]
    return _ZSH_HEAD + "\n".join(lines) + _ZSH_TAIL + "\n".join([*cases, ""]) + _ZSH_END


def _zsh_specs(option: Option) -> list[str]:
    value = f":{_escape(option.value_name or option.flag)}:{_zsh_values(option)}"
    if option.positional:
        return [quote(value)]
    if option.is_switch:
        return [quote(f"{flag}[{_escape(option.help)}]") for flag in _flags_of(option)]
    many, optional = "*" if option.repeated else "", ":" if option.bare else ""
    return [quote(f"{many}{flag}=[{_escape(option.help)}]{optional}{value}") for flag in _flags_of(option)]


def _zsh_values(option: Option) -> str:
    if option.choices:
        return f"({' '.join(option.choices)})"
    return "_files" if option.parse is path else " "


def _escape(text: str) -> str:
    """What has a meaning in a description, without it."""
    return "".join(f"\\{letter}" if letter in "[]:\\" else letter for letter in text)


_FISH_HEAD = """\
# fish: tardis-machine completion fish > ~/.config/fish/completions/tardis-machine.fish
function __tardis_machine_begun --description 'Whether the line holds these words, and no more'
    set -l words (commandline -opc)
    test "$words[2..-1]" = "$argv"
end
function __tardis_machine_in --description 'Whether the line is of one of these commands'
    set -l words (commandline -opc) ''
    set -l command serve
    contains -- "$words[2..3]" $__tardis_machine_commands; and set command "$words[2..3]"
    contains -- "$words[2]" $__tardis_machine_commands; and set command "$words[2]"
    contains -- "$command" $argv
end
"""


def fish_script() -> str:
    """For fish 3 and later."""
    lines = [f"set -g __tardis_machine_commands {_fish_words(COMMANDS)}", "complete -c tardis-machine -f"]
    for begun, words in _next_words().items():
        for word, help_ in words.items():
            lines.append(_fish_line(f"__tardis_machine_begun {begun}".strip(), f"-a {word}", help_))
    takers: dict[Option, list[str]] = {}
    for command in COMMANDS.values():
        for option in _options_of(command):
            takers.setdefault(option, []).append(command.name)
    for option, commands in takers.items():
        condition = f"__tardis_machine_in {_fish_words(commands)}"
        if option.positional:
            lines += [_fish_line(condition, f"-a {_fish_quote(' '.join(option.choices))}", option.help)] if option.choices else []
        for flag in _flags_of(option):
            lines.append(_fish_line(condition, f"-l {flag[2:]}{_fish_values(option)}", option.help))
    lines += [f"complete -c tardis-machine -l {flag[2:]} -d {_fish_quote(help_)}" for flag, help_ in _STANDARD.items()]
    return _FISH_HEAD + "\n".join([*lines, ""])


def _fish_line(condition: str, what: str, help_: str) -> str:
    return f"complete -c tardis-machine -n {_fish_quote(condition)} {what} -d {_fish_quote(help_)}"


def _fish_values(option: Option) -> str:
    if option.choices:
        return f" -x -a {_fish_quote(' '.join(option.choices))}"
    if option.is_switch or option.bare:
        return ""
    return " -r -F" if option.parse is path else " -x"


def _fish_words(words: Mapping[str, object] | list[str]) -> str:
    return " ".join(f'"{word}"' if " " in word else word for word in words)


def _fish_quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
