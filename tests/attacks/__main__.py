"""``python -m tests.attacks``: how many attack cases of each kind are decided as expected; ``--json`` for programs.

``python -m tests.attacks agentdojo``: see `tests.attacks.agentdojo`.
"""

from __future__ import annotations

import json
import sys

from tests.attacks import agentdojo
from tests.attacks.cases import scoreboard


def main() -> None:
    if sys.argv[1:2] == ["agentdojo"]:
        agentdojo.main(sys.argv[2:])
        return
    scores = scoreboard()
    if "--json" in sys.argv[1:]:
        names = ("malicious_denied", "malicious_total", "benign_allowed", "benign_total")
        print(json.dumps({kind: dict(zip(names, one.counts, strict=True)) for kind, one in scores.items()}, indent=1))
        return
    for kind, one in scores.items():
        denied, malicious, allowed, benign = one.counts
        print(f"{kind:15} malicious denied {denied:5}/{malicious:<5} benign allowed {allowed:5}/{benign}")


if __name__ == "__main__":
    main()
