"""Policy files: YAML to a `PolicySet`.

Anything not understood is an error that says where it is and what to write instead.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, cast, get_args

import msgspec

from lgov_core._util.schema import Mistake, Place, checked, read_yaml
from lgov_core.errors import PolicyError, PolicyFileError, suggest_name
from lgov_core.governor.conditions import ConditionProblem, compiled
from lgov_core.governor.options import in_dry_run
from lgov_core.governor.rules import Default, Rule
from lgov_core.places import GoverningPlaces, in_force, places_for
from lgov_core.policies.confinement import check_confinement, document_digest, in_box, made_for_box
from lgov_core.policies.options import folder_joined, options_kind
from lgov_core.policies.policy_set import PolicySet, SetMode
from lgov_core.policies.registry import BUILTIN_POLICIES, available_policies, options_of
from lgov_core.settings import read_written
from lgov_core.types import Point, Policy, PolicyFactory, Severity

_Schema = TypeVar("_Schema", bound=msgspec.Struct)
_Text = Annotated[str, msgspec.Meta(pattern=r"\S", description="text")]
_Texts = Annotated[tuple[_Text, ...], msgspec.Meta(min_length=1, description="a list")]


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    """The keys of a policy file; its rules are looked at one by one, so that each has its own error."""

    version: Any = None
    name: _Text = "policies"
    mode: SetMode = "enforce"
    default: Default = "deny"
    confine: Any = msgspec.UNSET
    rules: Any = ()


class _RuleOfFile(msgspec.Struct, forbid_unknown_fields=True):
    """The keys of a rule of a policy file."""

    use: _Text | msgspec.UnsetType = msgspec.UNSET
    name: _Text | msgspec.UnsetType = msgspec.UNSET
    on: Annotated[tuple[Point, ...], msgspec.Meta(min_length=1, description="a list")] | msgspec.UnsetType = (
        msgspec.UNSET
    )
    tools: _Texts = ("*",)
    agents: _Texts = ("*",)
    when: Any = msgspec.UNSET
    options: Any = msgspec.field(name="with", default=None)
    severity: Severity | None = None


#: The words that a key may hold, for hints.
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "mode": get_args(SetMode), "default": get_args(Default), "on": tuple(Point), "severity": tuple(Severity),
}  # fmt: skip
#: Built-in policies without state.
_WITHOUT_MEMORY = frozenset({"allow", "deny", "egress", "path", "pii", "secrets", "shell", "sql", "tool"})


def load_policy_file(path: str | PathLike[str], *, registry: Mapping[str, PolicyFactory] | None = None) -> PolicySet:
    """The policies in a YAML file. Raises `PolicyFileError` with the line when anything in it is not understood.

    ``registry`` are the policies that rules may use; None: the built-in ones and those of installed plugins.
    """
    return load_policy_text(read_policy_file(path), str(path), registry=registry)[0]


def read_policy_file(path: str | PathLike[str]) -> bytes:
    """The bytes of a policy file. Raises `PolicyFileError`."""
    try:
        return read_written(path)
    except FileNotFoundError as error:
        raise PolicyFileError(
            "there is no such file", path=str(path), hint="check the path of the policy file"
        ) from error
    except (OSError, ValueError) as error:
        raise PolicyFileError(f"the file cannot be read: {error}", path=str(path)) from error


@dataclass(frozen=True, slots=True)
class MadePolicy:
    """A policy and what the file says that it is made of: the ``use`` and, as canonical JSON, the ``with`` of its rule."""

    use: str
    options: str
    policy: Policy


def load_policy_text(
    text: bytes,
    source: str,
    *,
    registry: Mapping[str, PolicyFactory] | None = None,
    made: Mapping[str, MadePolicy] | None = None,
) -> tuple[PolicySet, Mapping[str, MadePolicy]]:
    """The policies in the text of a file, and by rule name what they were made of.

    A rule of ``made`` that says the same as it did keeps its policy, and with it whatever that policy has counted. Raises
    `PolicyFileError`.
    """
    try:
        decoded = text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PolicyFileError("the file is not UTF-8 text", path=source) from error
    document, lines = read_yaml(decoded, source)
    loading = _Loading(source, lines, registry, made or {}, Path(source).absolute().parent)
    return loading.policy_set(document), loading.made


def fresh_policies(path: str | PathLike[str]) -> Callable[[], PolicySet]:
    """Makes the policies in a YAML file as often as it is called, each time as if nothing had been judged before.

    The file is read once. Policies that remember nothing are made once. Raises `PolicyFileError`.
    """
    text, source = read_policy_file(path), str(path)
    _, policies = load_policy_text(text, source)
    kept = {name: policy for name, policy in policies.items() if policy.use in _WITHOUT_MEMORY}
    return lambda: load_policy_text(text, source, made=kept)[0]


def named_places(path: str | PathLike[str]) -> GoverningPlaces:
    """A policy file and the files that it names: what it obeys, and where it keeps counts and answers.

    Raises `PolicyFileError` for a file that cannot be read; one that is wrong in other ways names what it can.
    """
    text, source = read_policy_file(path), os.path.abspath(path)
    document, _ = read_yaml(text.decode("utf-8-sig", "replace"), str(path))
    return _named_places(document, source, Path(source).parent, BUILTIN_POLICIES)


def _named_places(
    document: Any, source: str, folder: Path | None, registry: Mapping[str, PolicyFactory]
) -> GoverningPlaces:
    obeyed = [] if folder is None else [os.path.abspath(source)]
    kept: list[str] = []
    rules: Any = document.get("rules") if isinstance(document, Mapping) else ()
    for rule in rules if isinstance(rules, list | tuple) else ():
        if not isinstance(rule, Mapping) or rule.get("use") not in registry:
            continue
        kind, options = options_kind(registry[str(rule["use"])]), rule.get("with") or {}
        if kind is None or not isinstance(options, Mapping):
            continue
        options = {**kind.defaults_in_files, **options}
        for names, files in ((kind.obeyed, obeyed), (kind.kept, kept)):
            for value in (folder_joined(folder, options.get(name)) for name in names):
                listed: Sequence[Any] = value if isinstance(value, list) else [value]
                files += [os.path.abspath(file) for file in listed if isinstance(file, str) and "://" not in file]
    return GoverningPlaces.at(obeyed, kept)


def load_policies(
    document: Mapping[str, Any], *, source: str = "policies", registry: Mapping[str, PolicyFactory] | None = None
) -> PolicySet:
    """The policies in a document that is in memory already; ``source`` names it in errors, which have no lines.

    Raises `PolicyFileError`.
    """
    return _Loading(source, {}, registry, {}).policy_set(document)


class _Loading:
    """One document on its way to a set."""

    def __init__(
        self,
        source: str,
        lines: Mapping[Place, int],
        registry: Mapping[str, PolicyFactory] | None,
        kept: Mapping[str, MadePolicy],
        folder: Path | None = None,
    ) -> None:
        self.source = source
        self.folder = folder  # of the policy file; None for a document that is in no file
        self.lines = lines
        self.plugins_asked = registry is not None
        self.registry = BUILTIN_POLICIES if registry is None else registry
        self.kept = kept
        self.made: dict[str, MadePolicy] = {}
        self.boxed = in_box()

    def policy_set(self, document: Any) -> PolicySet:
        if document is None:
            raise self.error((), "the file is empty", "write version: 1 and rules")
        if not isinstance(document, Mapping):
            raise self.error((), "the file must be a mapping", "begin with version: 1")
        top = self.checked((), document, _Document)
        if isinstance(top.version, bool) or top.version != 1:
            raise self.error(("version",), f"version is {top.version!r}", "write version: 1")
        if not isinstance(top.rules, list | tuple) or not top.rules:
            raise self.error(
                ("rules",), "there are no rules", "write rules: with at least one rule; none would deny all"
            )
        if "confine" in document:
            check_confinement(document["confine"], self.source, self.lines)
            self.boxed = self.boxed or in_dry_run()  # nothing is run here, and there is a box to run it in
        with in_force(self.governing(document)):
            rules = self.rules(cast("Sequence[Any]", top.rules))
        names = [rule.name for rule in rules]
        for index, rule_name in enumerate(names):
            if rule_name in names[:index]:
                raise self.error(("rules", index, "name"), f"two rules are called {rule_name}", "rename one")
        try:
            digest = document_digest(document)
        except (TypeError, ValueError) as error:
            raise self.error((), f"the document holds what JSON cannot: {error}") from error
        return PolicySet(rules, default=top.default, mode=top.mode, name=top.name, digest=digest)

    def governing(self, document: Mapping[Any, Any]) -> GoverningPlaces:
        """The places in force, with what the document names."""
        named = _named_places(document, self.source, self.folder, self.registry)
        return named if self.folder is None else places_for(self.folder).and_of(named)

    def rules(self, rules: Sequence[Any]) -> list[Rule]:
        loaded: list[Rule] = []
        wrong: list[PolicyFileError] = []
        for index, rule in enumerate(rules):
            try:
                loaded.append(self.rule(("rules", index), rule))
            except PolicyFileError as error:
                if not in_dry_run():  # the rules behind it would open files for a set that will not be
                    raise
                wrong.append(error)
        if wrong:
            wrong[0].further = tuple(wrong[1:])
            raise wrong[0]
        return loaded

    def rule(self, location: Place, rule: Any) -> Rule:
        if not isinstance(rule, Mapping):
            raise self.error(location, "a rule must be a mapping", "write - name: ... and use: ...")
        written = self.checked(location, rule, _RuleOfFile)
        use = written.use
        if use is msgspec.UNSET:
            names = " or ".join(sorted(self.registry))
            raise self.error(location, "the rule does not say which policy to use", f"write use: {names}")
        if use not in self.registry and not self.plugins_asked:
            # Plugins are imported only for a file that needs them.
            self.registry, self.plugins_asked = available_policies(), True
        if use not in self.registry:
            raise self.error(
                (*location, "use"), f"there is no policy {use!r}", suggest_name(use.lower(), sorted(self.registry))
            )
        name = use if written.name is msgspec.UNSET else written.name
        policy = self.policy(location, use, name, written.options)
        if getattr(policy, "box_only", False) and not self.boxed:
            raise self.error(
                (*location, "with"),
                f"{use} with these options allows what it cannot judge, which is permitted only in a box",
                "run the program with lgov run --confine, and write confine: {preset: workspace} into the file; or, for"
                " shell, write unknown: escalate",
            )
        try:
            condition = None if written.when is msgspec.UNSET else compiled(written.when)
        except ConditionProblem as problem:
            raise self.error((*location, "when", *problem.place), problem.message, problem.hint) from problem
        return Rule(
            policy,
            name=name,
            on=() if written.on is msgspec.UNSET else written.on,  # the policy's own
            tools=written.tools,
            agents=written.agents,
            severity=written.severity,
            when=condition,
            permits=getattr(policy, "permits", False),  # a plugin has to say so
        )

    def policy(self, location: Place, use: str, name: str, options: Any) -> Policy:
        where = (*location, "with")
        options = {} if options is None else options
        if not isinstance(options, Mapping):
            raise self.error(where, "with must be a mapping", "write with: {option: value}")
        try:
            written = json.dumps(options, sort_keys=True)
        except (TypeError, ValueError):  # from Python, and reported below
            written = f"object {id(options)}"
        kept = self.kept.get(name)
        if kept is not None and (kept.use, kept.options) == (use, written):
            self.made[name] = kept
            return kept.policy
        factory = self.registry[use]
        parameters = options_of(factory)
        open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
        if not open_ended:
            self.known_keys(where, options, tuple(option for option in parameters if option != "name"), what="option")
        kind = options_kind(factory)
        required, paths = (kind.needed_in_files, kind.paths) if kind is not None else ((), ())
        options = options if kind is None or self.folder is None else {**kind.defaults_in_files, **options}
        for option, parameter in parameters.items():
            missing = option not in options if parameter.default is parameter.empty else option in required
            if missing and options.get(option) is None and option != "name" and not open_ended:
                raise self.error(where, f"policy {use} needs {option}", f"write with: {{{option}: ...}}")
        try:
            # Processes that share a policy file may run in different folders.
            joined = {option: folder_joined(self.folder, options[option]) for option in paths if option in options}
            with made_for_box() if self.boxed else nullcontext():
                policy = factory(**{"name": name, **options, **joined})
        except PolicyFileError:
            raise
        except PolicyError as error:
            raise self.error(self.culprit(where, options, error), error.message, error.hint) from error
        except Exception as error:
            raise self.error(where, f"policy {use} cannot be made: {type(error).__name__}: {error}") from error
        self.made[name] = MadePolicy(use, written, policy)
        return policy

    def culprit(self, where: Place, options: Mapping[str, Any], error: PolicyError) -> Place:
        """The option, or the innermost key within it, that the error's message speaks of."""
        if isinstance(error.__cause__, Mistake):
            return (*where, *error.__cause__.path)
        words = set(error.message.replace(":", " ").split())
        spoken_of = [(*where, option) for option in options if option in words]
        inner = [location for location in self.lines if location[: len(where)] == where and location[-1] in words]
        return max([where, *spoken_of, *inner], key=len)

    # ------------------------------------------------------------------ checks

    def known_keys(
        self, location: Place, mapping: Mapping[Any, Any], names: Iterable[str], *, what: str = "key"
    ) -> None:
        allowed = tuple(names)
        for key in mapping:
            if key not in allowed:
                raise self.error(
                    (*location, key),
                    f"there is no {what} {key!r} here",
                    suggest_name(str(key).lower(), sorted(allowed)),
                )

    def checked(self, location: Place, value: Mapping[Any, Any], schema: type[_Schema]) -> _Schema:
        """``value`` as ``schema`` describes it, or the error that says where it is wrong and what to write."""
        self.known_keys(location, value, schema.__struct_encode_fields__)
        try:
            return checked(dict(value), schema)  # msgspec looks for unknown keys in a dict only
        except Mistake as mistake:
            key, *deeper = mistake.path or ("",)
            raw = value[key]
            if deeper:
                raw = raw[deeper[0]]
            at = (*location, *mistake.path)
            if not deeper and mistake.expected == "a list":
                raise self.error(at, f"{key} must be a list", f"write {key}: [...]") from mistake
            if key in _CHOICES:
                hint = suggest_name(str(raw).lower(), sorted(_CHOICES[str(key)]))
                raise self.error(at, f"{'this' if deeper else key} is {raw!r}", hint) from mistake
            raise self.error(at, f"{at[-1]} is {raw!r}, which is not text", "put it in quotes") from mistake

    def error(self, location: Place, message: str, hint: str | None = None) -> PolicyFileError:
        """The error with the line of ``location``, or of the nearest thing around it that has one."""
        while location and location not in self.lines:
            location = location[:-1]
        return PolicyFileError(message, path=self.source, line=self.lines.get(location), hint=hint)
