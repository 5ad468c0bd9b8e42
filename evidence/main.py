"""Measures what lgov claims, one claim a command, and writes down what came out.

    python evidence/main.py governance|credit|air|horizon|defaults [--seeds N] [--quick]
    python evidence/main.py settings [--setting sql|retrieval|maths] [--seed N] [--model tiny|smollm2] [--quick] [--real]
    python evidence/main.py public [--setting legs|equations|paths] [--seed N] [--model tiny|smollm2] [--quick]
    python evidence/main.py page       # puts the committed results into evidence/results/README.md, docs/evidence/results.md

Settings and public are packages; the others are modules of this folder with `run`, `tables` and `draw`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
# Threads that spin while they wait make everything crawl where something else wants the processor too.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from page import write_page  # noqa: E402

from evidence import RESULTS, Options, provenance, write_result  # noqa: E402


def main(arguments: list[str]) -> int:
    """Runs one piece of evidence. Returns the exit status."""
    if arguments[:1] in (["settings"], ["public"]):  # several at once, with options of their own
        return importlib.import_module(f"{arguments[0]}.piece").main(arguments[1:])
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    names = ["governance", "credit", "air", "horizon", "defaults", "settings", "public", "page"]
    parser.add_argument("name", choices=names)
    parser.add_argument("--seeds", type=int, default=None, help="how many (default: as many as the claim asks for)")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works; shows nothing")
    cores = os.cpu_count() or 1
    parser.add_argument("--jobs", type=int, default=min(2, cores), help="runs at the same time; 0: in this process")
    parser.add_argument("--folder", type=Path, default=None, help="where the runs are left (runs/evidence-NAME)")
    parser.add_argument(
        "--results", type=Path, default=None, help="where JSON and plot go (the committed ones; quick: FOLDER)"
    )
    given = parser.parse_args(arguments)
    if given.jobs < 0 or (given.seeds is not None and given.seeds < 1):
        parser.error("--seeds is 1 or more, --jobs is 0 or more")
    if given.name == "page":
        write_page()
        return 0
    module = importlib.import_module(given.name)
    folder = given.folder or Path("runs") / f"evidence-{given.name}{'-quick' if given.quick else ''}"
    count = given.seeds or (1 if given.quick else module.SEEDS)
    options = Options(
        given.name,
        tuple(range(given.first_seed, given.first_seed + count)),
        given.quick,
        given.jobs,
        folder.resolve(),
        (given.results or (folder if given.quick else RESULTS)).resolve(),
    )
    # Where the files lie changes no figure.
    where = {"--folder", "--results"}
    pairs = zip(["", *arguments], arguments, strict=False)
    words = (word for last, word in pairs if not where & {last, word.partition("=")[0]})
    command = f"python evidence/main.py {' '.join(words)}"
    result = {**provenance(command, options), **module.run(options)}
    write_result(result, options, module.draw)
    print(module.tables(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
