"""The same run with several seeds, then a table: `python seeds.py 0 1 2` in an environment that has openforge.

Each run is an ordinary `openforge train run.yaml` in a directory of its own; one that reached its end before is not run again.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def run(seed: int) -> list[dict[str, Any]]:
    directory = HERE / "runs" / f"seed-{seed}"
    if not (directory / "report.html").exists():
        command = (
            ["resume", str(directory)] if directory.exists() else ["train", str(HERE / "run.yaml"), "--set", f"run_dir=runs/seed-{seed}"]
        )
        subprocess.run([sys.executable, "-m", "openforge", *command, "--set", f"seed={seed}"], check=True)
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def row(seed: int, rows: list[dict[str, Any]]) -> str:
    accuracy = {(each["set"], each["label"]): each["accuracy"] for each in rows if each["kind"] == "eval"}
    steps = [each for each in rows if each["kind"] == "step"]
    cells = [f"{accuracy[name, label]:.3f}" for name in ("A", "B") for label in ("base model", "before rl", "after rl")]
    gap = max(each["logprob_gap"] for each in steps if each.get("logprob_gap") is not None)
    return " | ".join(["", str(seed), *cells, f"{steps[-1]['elapsed'] / 60:.1f} min", str(len(steps)), f"{gap:.1e}", ""]).strip()


if __name__ == "__main__":
    seeds = [int(seed) for seed in sys.argv[1:]]
    table = [row(seed, run(seed)) for seed in seeds]
    print("| seed | A base | A before RL | A after RL | B base | B before RL | B after RL | RL time | steps | log-prob gap (worst step) |")
    print("| --- " * 10 + "|")
    print("\n".join(table))
