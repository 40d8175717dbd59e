"""An agent that misbehaves in the way its instruction names, after one ordinary model call."""

import os
import subprocess
import sys
import time
from pathlib import Path

how = sys.argv[1]
question = "x" * 5000 if how == "long" else how
ended = subprocess.run([sys.executable, str(Path(__file__).with_name("agent.py")), question], capture_output=True, check=False)
if how == "crash":
    raise SystemExit(3)
if how == "hang":
    time.sleep(3600)
if how == "flood":
    for _ in range(2000):
        sys.stdout.write("y" * 10_000)
if how == "bytes":
    os.write(1, b"\xff\xfe\x00 not text \xc3")
if ended.returncode:
    sys.stderr.write(ended.stderr.decode(errors="replace"))
    raise SystemExit(1)
print(ended.stdout.decode(errors="replace"))
