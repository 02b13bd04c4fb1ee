"""What Reef costs, as ratios against a rival or a limit, measured side by side in one run.

`make bench` runs everything; `python -m bench NAME...` some of it. Every timed case runs warm, in
turn with its rival, and once more in a fresh process on each side.

_measure, _fresh   warm passes in turn; first passes in processes of their own
_report, _plot     tables and JSON; charts as SVG
"""
