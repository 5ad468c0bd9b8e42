"""The text of each token, where the tokenizer of a run is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from lgov_core.audit.attestation import read_attestation
from lgov_core.audit.lineage import read_lineage
from lgov_core.errors import LgovError, ModelError

_FILE: Final = "tokenizer.json"


class TokenTexts:
    """Token ids as texts, by a transformers tokenizer (``tokenizer.json``). Callable from any thread.

    A token that is part of a character is shown as the replacement character. Raises `ModelError` when the file cannot be
    read or the package ``tokenizers`` (extra ``train``) is missing.
    """

    def __init__(self, path: Path) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise ModelError("texts of tokens need tokenizers", hint='pip install "lgov[train]"') from error
        file = path / _FILE if path.is_dir() else path
        try:
            self._tokenizer: Any = Tokenizer.from_file(str(file))
        except Exception as error:  # the package raises Exception itself
            raise ModelError(f"{file} cannot be read: {error}", hint="name a tokenizer.json, or its folder") from error
        self._known: dict[int, str] = {}

    def of(self, ids: Sequence[int]) -> list[str]:
        """The text of each id; of an id that the tokenizer does not know, its number in brackets."""
        new = [one for one in dict.fromkeys(ids) if one not in self._known]
        decoded: list[str] = self._tokenizer.decode_batch([[one] for one in new], skip_special_tokens=False)
        for one, text in zip(new, decoded, strict=True):
            known = text or self._tokenizer.id_to_token(one)
            self._known[one] = f"[{one}]" if known is None else known
        return [self._known[one] for one in ids]


def find_tokenizer(folder: Path | None) -> Path | None:
    """The tokenizer of the model that a run began with, None where it is not on this machine."""
    if folder is None:
        return None
    return next((place for place in _places(folder) if (place / _FILE).is_file()), None)


def _places(folder: Path) -> Iterator[Path]:
    yield folder
    for checkpoint in sorted(folder.glob("checkpoints/*"), reverse=True):
        yield checkpoint
        if (name := start_model(checkpoint)) is not None:
            yield Path(name)
            yield folder.parent / Path(name).name  # the runs were moved together
            if name == "smollm2":
                from lgov_core.models import smollm2_folder

                yield smollm2_folder()


def start_model(checkpoint: Path) -> str | None:
    """The model that training began with, as the checkpoint's own statement names it, unverified."""
    statement = last_statement(checkpoint)
    model = (statement.get("start") or {}).get("model")
    return model if isinstance(model, str) and model else None


def last_statement(checkpoint: Path) -> dict[str, Any]:
    """What the last statement in a checkpoint says; empty where there is none."""
    try:
        return dict(read_attestation(read_lineage(checkpoint)[-1]).statement["predicate"])
    except (LgovError, OSError, ValueError, LookupError, TypeError):
        return {}
