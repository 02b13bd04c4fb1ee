"""What Reef costs, as ratios against a rival or a limit, measured side by side in one run.

`make bench` runs everything; `python -m bench NAME...` some of it; `--json` prints for programs.
"""
