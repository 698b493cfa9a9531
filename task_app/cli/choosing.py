"""What a command was not told it does not guess: in a terminal it shows what there is and asks, elsewhere it fails with
the list.

Secrets that are typed in are never shown, and written to a file only where the answer to that question is yes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Secrets", "chosen_config", "secrets_for"]


@dataclass(frozen=True, slots=True)
class Secrets:
    """The environment of a command.

    environ       the process's own variables; those of a chosen file, or typed in, over them
    modal_secret  name of the Modal secret that holds what is needed there; None where the variables do
    """

    environ: dict[str, str]
    modal_secret: str | None = None


def chosen_config(given: Path | None, kinds: Sequence[str]) -> Path:
    """`given`, or the config file of one of `kinds` that is picked from those found here.

    Raises ConfigError, with the list, where nobody can be asked.
    """
    from task_app.config.found import find_configs
    from task_app.core.errors import ConfigError

    if given is not None:
        return given
    found = find_configs(kinds=kinds)
    listed = [f"{one.path}  ({one.kind})" for one in found]
    if not found:
        raise ConfigError("no --config given, and no config file is here or in configs/", field="config")
    if not _somebody_is_there():
        raise ConfigError(f"no --config given; found here:{_as_list(listed)}", field="config")
    return found[_pick("Which config?", listed)].path


def secrets_for(
    needed: Sequence[str],
    env_file: Path | None,
    *,
    environ: Mapping[str, str] = os.environ,
    modal: bool = False,
) -> Secrets:
    """The environment with every variable of `needed` set, from `env_file`, from what is set already, or asked for.

    A file that was named counts more than what is set already; no file is read that was not named or picked.
    `modal` also offers a secret kept at Modal. Raises ConfigError, with the variables that are missing and the files
    found, where nobody can be asked, and for a person who gives up.
    """
    from task_app.config.found import read_env_file

    known = dict(environ) | (read_env_file(env_file) if env_file else {})
    while missing := [name for name in needed if not known.get(name, "").strip()]:
        if not _somebody_is_there():
            raise _missing(missing, env_file)
        answer = _ask_for(missing, modal)
        if isinstance(answer, str):
            return Secrets(known, answer)
        known |= answer
    return Secrets(known)


def _missing(missing: Sequence[str], env_file: Path | None) -> Exception:
    from task_app.config.found import find_env_files
    from task_app.core.errors import ConfigError

    names = ", ".join(missing)
    if env_file:
        return ConfigError(f"env file {env_file} does not set {names}", field="env_file")
    files = find_env_files()
    hint = f"name one with --env-file; found here:{_as_list(map(str, files))}" if files else "no .env file is here"
    return ConfigError(f"not set: {names}; {hint}", field="env_file")


def _ask_for(missing: Sequence[str], modal: bool) -> dict[str, str] | str:
    """Variables from one way of giving them, or the name of a Modal secret. Raises ConfigError when given up."""
    from task_app.config.found import find_env_files, read_env_file

    ways: list[tuple[str, Callable[[], dict[str, str] | str]]] = [
        (f"read {path}", lambda path=path: read_env_file(path)) for path in find_env_files()
    ]
    ways.append(("enter by hand", lambda: _typed_in(missing)))
    ways.append(("another .env file", lambda: read_env_file(Path(_said("Path")))))
    if modal:
        ways.append(("a secret kept at Modal", lambda: _said("Its name")))
    ways.append(("abort", _abort))
    return ways[_pick(f"Not set: {', '.join(missing)}. Where from?", [label for label, _ in ways])][1]()


def _typed_in(missing: Sequence[str]) -> dict[str, str]:
    from rich.prompt import Confirm

    from task_app.cli.output import errors

    values = {name: _said(name, hidden=True) for name in missing}
    if Confirm.ask("Keep them in the file .env here?", default=False, console=errors):
        _append(Path(".env"), values)
    return values


def _append(path: Path, values: Mapping[str, str]) -> None:
    """Add variables to a file that only its owner can read."""
    quoted = {name: value.replace("\\", "\\\\").replace("'", "\\'") for name, value in values.items()}
    text = "".join(f"{name}='{value}'\n" for name, value in quoted.items())
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "a", encoding="utf-8") as file:
        file.write(text if file.tell() == 0 or path.read_bytes().endswith(b"\n") else f"\n{text}")


def _abort() -> dict[str, str]:
    from task_app.core.errors import ConfigError

    raise ConfigError("given up; nothing was done", field="env_file")


def _pick(question: str, listed: Sequence[str]) -> int:
    """The index of the entry that a person picks by its number."""
    from rich.prompt import IntPrompt

    from task_app.cli.output import errors

    errors.print(f"{question}{_as_list(f'{number}  {label}' for number, label in enumerate(listed, 1))}")
    numbers = [str(number) for number in range(1, len(listed) + 1)]
    return IntPrompt.ask("Number", choices=numbers, show_choices=False, console=errors) - 1


def _said(question: str, *, hidden: bool = False) -> str:
    from getpass import getpass

    from rich.prompt import Prompt

    from task_app.cli.output import errors

    answer = ""
    while not answer.strip():
        answer = getpass(f"{question}: ") if hidden else Prompt.ask(question, console=errors)
    return answer.strip()


def _as_list(lines: Iterable[str]) -> str:
    return "".join(f"\n  {line}" for line in lines)


def _somebody_is_there() -> bool:
    """Whether there is a terminal to ask in."""
    return sys.stdin.isatty() and sys.stderr.isatty()
