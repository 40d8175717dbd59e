"""Commands in a run file: which program they start, where their relative paths lie, and the environment they see.

Invariant: a command sees nothing of the parent's environment but what `base_environment` lists, so no secret of the parent's leaks into it.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from openforge.types import UserError

_PLACEHOLDER = re.compile(r"\{(\{?)([A-Za-z_]\w*)\}(\}?)")


def base_environment(home: Path) -> dict[str, str]:
    """PATH (the running interpreter's folder first), HOME, TMPDIR, LANG and, where set, VIRTUAL_ENV and LD_LIBRARY_PATH."""
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    if sys.prefix != sys.base_prefix:
        kept["VIRTUAL_ENV"] = sys.prefix
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {"PATH": path, "HOME": str(home), "TMPDIR": str(home / ".tmp"), "LANG": os.environ.get("LANG", "C.UTF-8"), **kept}


def resolve_command(argv: Sequence[str], base_dir: Path, *, setting: str) -> list[str]:
    """`argv` made independent of the working directory. Raises `UserError` where the program or a Python script is missing.

    An element that names an existing file relative to `base_dir` (the run file's folder) becomes that file's absolute path; `python` as the
    program is the running interpreter; any other program is looked up in PATH. Everything else stays as it is.
    """
    if not argv:
        raise UserError(f"{setting}: the command is empty; write it as a list, e.g. [python, agent.py]")
    base = base_dir.resolve()
    resolved = [str(base / part) if part and not part.startswith("/") and (base / part).is_file() else part for part in argv]
    if resolved[0] in ("python", "python3"):
        resolved[0] = sys.executable
    program = shutil.which(resolved[0], path=base_environment(base)["PATH"])
    if program is None:
        kind = "is not executable (chmod +x)" if Path(resolved[0]).is_file() else f"is found neither in PATH nor in {base}"
        raise UserError(f"{setting}: the program '{argv[0]}' {kind}")
    script = resolved[1] if len(resolved) > 1 else ""
    if script.endswith(".py") and not _PLACEHOLDER.search(script) and not Path(script).is_file():
        raise UserError(f"{setting}: no script '{script}' in {base}")
    return [os.path.abspath(program), *resolved[1:]]


def check_placeholders(texts: Sequence[str], known: Sequence[str], *, setting: str) -> None:
    """Raise `UserError` for a `{name}` that is not in `known`."""
    for text in texts:
        for opening, name, closing in _PLACEHOLDER.findall(text):
            if not (opening and closing) and name not in known:
                names = " ".join(f"{{{name}}}" for name in known)
                raise UserError(f"{setting}: unknown placeholder {{{name}}}; known are {names} (write {{{{{name}}}}} for a literal one)")


def fill_placeholders(text: str, values: Mapping[str, str]) -> str:
    """Replace `{name}` by its value and `{{name}}` by a literal `{name}`, in one pass: braces inside a value are left alone."""

    def value(match: re.Match[str]) -> str:
        opening, name, closing = match.groups()
        return f"{{{name}}}" if opening and closing else f"{opening}{values[name]}{closing}"

    return _PLACEHOLDER.sub(value, text)
