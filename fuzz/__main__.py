"""Fuzz every decoder in turn; exit 1 at the first finding, which is kept.

    python -m fuzz [--seconds N] [--runs N] [--seed N] [NAME...]

The corpus grows in `.cache/fuzz/NAME`; a finding is left there as `crash-...`, to be replayed with
`python -m fuzz.target NAME .cache/fuzz/NAME/crash-...`.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
FORMATS = ("log", "manifest", "dedup", "segment")
NAMES = (*FORMATS, *(f"{name}-unchecked" for name in FORMATS))
LENGTH_MAX = 16_384


def fuzz(name: str, corpus: Path, limits: list[str], seed: int) -> int:
    """Fuzz one target until a limit; return how many inputs it tried. Raises on a finding."""
    command = [sys.executable, "-m", "fuzz.target", name, str(corpus), f"-seed={seed}"]
    command += [f"-max_len={LENGTH_MAX}", f"-artifact_prefix={corpus}/", "-rss_limit_mb=1024"]
    done = subprocess.run(
        command + limits,
        cwd=REPO,
        env=os.environ | {"PYTHONPATH": f"{REPO}/src:{REPO}"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{name}: a finding\n{done.stdout}\n{done.stderr}")
    tried = re.search(r"Done (\d+) runs", done.stderr)
    if tried is None:
        raise RuntimeError(f"{name}: ended without a count\n{done.stderr}")
    return int(tried[1])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description="Fuzz every decoder.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (default 60)")
    parser.add_argument("--runs", type=int, help="at most so many inputs for each target")
    parser.add_argument("--seed", type=int, default=0, help="0: a new one each time")
    options = parser.parse_args()
    unknown = set(options.names) - set(NAMES)
    if unknown:
        parser.error(f"unknown target {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    limits = [f"-max_total_time={options.seconds}"]
    if options.runs:
        limits.append(f"-runs={options.runs}")
    for name in options.names or NAMES:
        try:
            tried = fuzz(name, REPO / ".cache" / "fuzz" / name, limits, options.seed)
        except RuntimeError as error:
            print(error, file=sys.stderr)
            return 1
        print(f"{name}: {tried:,} inputs, nothing found", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
