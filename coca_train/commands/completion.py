"""Print what lets a shell complete verbs, groups, choices and options: source <(coca-train completion bash)."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.commands import DEFAULT, verb_of, verbs
from coca_train.config.arguments import Arguments, read_arguments
from coca_train.config.fields import ChoiceOf, mark_of, module_options, options
from coca_train.config.files import choices, config_dirs
from coca_train.config.load import Loaded
from coca_train.config.root import Root
from coca_train.config.schema import STRICT
from coca_train.config.verb import Verb
from coca_train.runtime.errors import UserError
from coca_train.settings import TRAIN

USAGE = """\
What lets a shell complete the words of coca-train. For this shell, and for each to come:

  source <(coca-train completion bash)      echo 'source <(coca-train completion bash)' >> ~/.bashrc
  source <(coca-train completion zsh)       echo 'source <(coca-train completion zsh)' >> ~/.zshrc
  coca-train completion fish | source       coca-train completion fish > ~/.config/fish/completions/coca-train.fish
"""
# Each asks `coca-train completion -- <words so far>`; the last word is the one that is being typed.
BASH = """\
_coca_train() {
    local line=${COMP_LINE:0:COMP_POINT} word head
    local -a words
    read -ra words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    word=${words[${#words[@]}-1]}
    COMPREPLY=($(compgen -W "$(coca-train completion -- "${words[@]:1}" 2> /dev/null)" -- "$word"))
    if [[ ${COMPREPLY[0]} == *[=.] ]]; then
        compopt -o nospace 2> /dev/null
    fi
    if [[ $COMP_WORDBREAKS == *=* ]]; then  # readline completes only what is behind the last one
        head=${word%"${word##*[=:]}"}
        COMPREPLY=("${COMPREPLY[@]#"$head"}")
    fi
}
complete -o default -F _coca_train coca-train
"""
ZSH = """\
#compdef coca-train
_coca_train() {
    local -a candidates
    candidates=(${(f)"$(coca-train completion -- "${(@)words[2,CURRENT]}" 2> /dev/null)"})
    if (( $#candidates )); then
        compadd -S '' -- ${(M)candidates:#*[=.]}
        compadd -- ${candidates:#*[=.]}
    else
        compset -P '*='
        _files
    fi
}
compdef _coca_train coca-train
"""
FISH = """\
function __coca_train
    set -l words (commandline -opc) (commandline -ct)
    coca-train completion -- $words[2..-1] 2> /dev/null
end
complete -c coca-train -a '(__coca_train)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


@dataclass(frozen=True, kw_only=True, config=STRICT)
class CompletionConfig:
    """For which shell."""

    shell: Literal["bash", "zsh", "fish"] = Field(description="whose completion; its name alone is short for it")


class _Completion(Verb):
    """Answers the scripts too."""

    def main(self, argv: list[str]) -> int | None:
        if argv[:1] != ["--"]:
            return super().main(argv)
        print("\n".join(candidates(argv[1:] or [""])))
        return 0


def candidates(words: Sequence[str]) -> list[str]:
    """Return what the last of these words can become; an option that wants a value ends with `=`."""
    *before, word = words
    offered = [] if before else list(verbs())
    name = before.pop(0) if before and before[0] in verbs() else DEFAULT
    verb = verb_of(name)
    if name == "completion":
        offered += SCRIPTS
    if before[-1:] == ["--cfg"]:
        offered += ["job"]
    elif before[-1:] == ["--config-dir"]:
        pass  # the shell offers folders
    elif word.startswith("-"):
        offered += [flag.partition(" ")[0] for flag in verb.flags]
    else:
        dirs = _config_dirs(before, verb)
        for root, takes in _roots(verb):
            words_of_root = _values(root, word, dirs) if "=" in word else _keys(root, word)
            offered += [each for each in words_of_root if takes(each)]
    return sorted({each for each in offered if each.startswith(word)})


def _config_dirs(before: list[str], verb: Verb) -> tuple[Path, ...]:
    try:
        return read_arguments(before, verb.flags).config_dirs
    except UserError:  # said when the command is run
        return ()


def _roots(verb: Verb) -> Iterator[tuple[Root, Callable[[str], bool]]]:
    """The configurations that a verb's words may be for, each with the test whether a word is."""
    yield verb.root, lambda word: True
    if verb.root.passthrough_groups:
        yield TRAIN, verb.is_for_training


def _keys(root: Root, word: str) -> Iterator[str]:
    """Groups, and the options of the section that has been typed; the other sections by name."""
    plus = "+" if word.startswith("+") else ""
    for group in root.groups:
        yield f"{'+' if group in root.optional_groups else plus}{group}="
    section = word.lstrip("+").rpartition(".")[0]
    known = [option.key for option in options(root)]
    if section in root.registries:
        known += module_options(root)
    for key in known:
        if "." not in key or (section and key.startswith(f"{section}.")):
            yield plus + f"{key}=".partition("<")[0]
        else:
            yield f"{plus}{key.partition('.')[0]}."
    yield from (f"{plus}{section}." for section in root.registries)


def _values(root: Root, word: str, dirs: tuple[Path, ...]) -> Iterator[str]:
    """The choices of a group or an option; of a list, of its last part."""
    typed, _, value = word.partition("=")
    key = typed.lstrip("+")
    option = next((option for option in options(root) if option.key == key), None)
    if key in root.groups:
        offered = [*choices(key, root.dirs(dirs))]
    elif (mark := mark_of(root, key, ChoiceOf)) is not None:
        offered = [*choices(mark.group, config_dirs())]
    else:
        offered = option.values if option else ()
    before = value[: value.rfind(",") + 1]
    yield from (f"{typed}={before}{each}" for each in offered)


COMPLETION = Root(
    name="completion",
    schema=CompletionConfig,
    command="coca_train completion",
    examples="shell=bash",
)


def _print(loaded: Loaded[CompletionConfig], arguments: Arguments) -> None:
    print(SCRIPTS[loaded.config.shell], end="")


VERB = _Completion(
    COMPLETION,
    USAGE,
    _print,
    needs_words=True,
    expand=lambda words: [word if "=" in word else f"shell={word}" for word in words],
)
