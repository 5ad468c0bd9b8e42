"""Asks the type checker of `make check` about mutants that no test has noticed: one that it refuses cannot come in."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def refused(texts: Mapping[str, tuple[str, str]], folder: Path) -> set[str]:
    """The keys of ``texts`` (a file as it is, and as a mutant has it) in which pyright finds an error that was not there.

    Only errors of types count, not what is unused or unnecessary. Raises `RuntimeError` where pyright does not run.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    originals = {
        source: folder / f"original_{number}.py" for number, source in enumerate({one for one, _ in texts.values()})
    }
    mutants = {key: folder / f"mutant_{number}.py" for number, key in enumerate(texts)}
    for source, path in originals.items():
        path.write_text(source)
    for key, path in mutants.items():
        path.write_text(texts[key][1])
    options: dict[str, Any] = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["pyright"]
    options |= {"include": ["*.py"], "extraPaths": [str(Path.cwd())]}
    (folder / "pyrightconfig.json").write_text(json.dumps(options))
    pyright = [str(Path(sys.executable).with_name("pyright")), "--pythonpath", sys.executable, "--outputjson", "-p"]
    ran = subprocess.run([*pyright, str(folder)], capture_output=True, text=True, check=False)
    try:
        report = json.loads(ran.stdout)
        assert report["summary"]["filesAnalyzed"] == len(originals) + len(mutants)
    except (ValueError, AssertionError) as error:
        raise RuntimeError(f"pyright did not run: {ran.stdout[-500:]}{ran.stderr[-500:]}") from error
    errors: dict[str, Counter[tuple[str, str]]] = {}
    for finding in report["generalDiagnostics"]:
        rule = finding.get("rule", "")
        if finding["severity"] == "error" and not rule.startswith(("reportUnused", "reportUnnecessary")):
            errors.setdefault(finding["file"], Counter())[rule, finding["message"]] += 1
    of_file = {Path(file).name: found for file, found in errors.items()}
    return {
        key
        for key, path in mutants.items()
        if of_file.get(path.name, Counter()) - of_file.get(originals[texts[key][0]].name, Counter())
    }
