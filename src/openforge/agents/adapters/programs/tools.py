"""What the example agents can do in their working directory. Plain functions: every framework makes tools of them in its own way."""

from __future__ import annotations

import subprocess
from pathlib import Path


def read_file(path: str) -> str:
    """Read a text file.

    Args:
        path: The file, relative to the working directory.
    """
    return Path(path).read_text()


def edit_file(path: str, old: str, new: str) -> str:
    """Replace the one place in a file where a text stands.

    Args:
        path: The file, relative to the working directory.
        old: The text to replace; it must stand in the file exactly once.
        new: What to put in its place.
    """
    text = Path(path).read_text()
    if (count := text.count(old)) != 1:
        return f"error: the text stands {count} times in {path}"
    Path(path).write_text(text.replace(old, new))
    return f"edited {path}"


def run_command(command: str) -> str:
    """Run a shell command and return what it prints.

    Args:
        command: The command.
    """
    done = subprocess.run(command, shell=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return f"{done.stdout}{done.stderr}[exit code {done.returncode}]"
