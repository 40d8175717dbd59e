"""References to the user's Python code: `file.py:name`, relative to the run file's folder, or `package.module:name`.

Invariant: a file is executed once a process, however many references point into it.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from openforge.types import UserError


def load_object(reference: str, base_dir: Path, *, setting: str) -> Any:
    """The object `reference` names. `setting` is the key in the run file that holds it, for messages.

    The file's own folder (for a module: `base_dir`) joins `sys.path`, so that it can import its neighbours. Raises `UserError` where the
    file, the module or the name is missing, or importing it fails.
    """
    place, colon, name = reference.rpartition(":")
    if not colon or not name.isidentifier():
        raise UserError(f"{setting}: '{reference}' is no reference; write it as file.py:name or module:name")
    if place.endswith(".py"):
        path = (base_dir / place).resolve()
        if not path.is_file():
            raise UserError(f"{setting}: no file {path} (named by '{reference}')")
        folder, module_name = path.parent, f"openforge_user:{path}"
    else:
        folder, module_name = base_dir.resolve(), place
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    try:
        module = sys.modules[module_name] if module_name in sys.modules else _import(module_name, place, folder)
    except (Exception, SystemExit) as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"line {error.lineno}" if isinstance(error, SyntaxError) else f"{frame.filename}:{frame.lineno}"
        raise UserError(
            f"{setting}: importing '{place}' fails: {type(error).__name__}: {' '.join(str(error).split())} ({where})"
        ) from error
    if not hasattr(module, name):
        near = difflib.get_close_matches(name, [n for n in vars(module) if not n.startswith("_")], 1)
        raise UserError(f"{setting}: {place} has no '{name}'" + (f"; did you mean '{near[0]}'?" if near else ""))
    return getattr(module, name)


def _import(module_name: str, place: str, folder: Path) -> ModuleType:
    if not place.endswith(".py"):
        return importlib.import_module(module_name)
    spec = importlib.util.spec_from_file_location(module_name, folder / Path(place).name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses look their module up there while it is being executed
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module
