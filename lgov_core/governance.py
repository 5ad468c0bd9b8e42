"""Everything that can be configured about governing, as one value, and the way from it to a governor.

Whatever governs something takes a `Governance` and opens it: ``lgov run`` and the processes that its program starts, the box,
the pytest plugin, the OpenTelemetry entry point, the clients and workers of a training, and the endpoint::

    governance = Governance.from_settings()
    with governance.open() as opened:
        opened.governor.decide(action)

So what ``lgov.toml`` says about the record, its key, redaction, the store and timeouts holds in all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lgov_core.errors import InstrumentationError, LgovError
from lgov_core.places import DEFAULT_AUDIT, PROJECT_FILE, GoverningPlaces, in_force
from lgov_core.settings import settings_places
from lgov_core.trust import Below, RunChange, RunWatch, UntrustedChanges, on_record, refuse_untrusted

if TYPE_CHECKING:
    from lgov_core.air import AirRules, RuleSet
    from lgov_core.audit import AuditLog
    from lgov_core.confine.broker import BrokeredLog
    from lgov_core.governor import Governor
    from lgov_core.policies import PolicySet
    from lgov_core.settings import Settings
    from lgov_core.store import TraceStore
    from lgov_core.types import Span

_PATHS: Final = ("policy", "audit", "audit_key", "heads", "air")


@dataclass(frozen=True, slots=True, kw_only=True)
class Governance:
    """How something is governed. A value: it opens nothing until `open`, and may be shared between threads.

    ``policy`` is a policy file; without one nothing can be governed, only watched. ``audit`` is the file of the record,
    ``audit_key`` the secret key that signs it (the user's key if None), ``heads`` the file for its signed heads (beside the
    record if None), and ``redact`` names arguments whose values the record does not keep. ``air`` is a file of rules for
    intermediate rewards (the built-in ones if None). ``store`` keeps spans and rewards; None keeps none. ``timeout_s`` bounds
    a policy that does not promise bounded cost, in seconds. With ``content`` false no prompt, argument or result is on a
    span. ``programs`` are the files of the programs that run under it. ``broker`` is the address of the process that keeps the
    record and the approvals of a box; it is only set in one.
    """

    policy: Path | None = None
    audit: Path = DEFAULT_AUDIT
    audit_key: Path | None = None
    heads: Path | None = None
    redact: tuple[str, ...] = ()
    air: Path | None = None
    store: str | None = field(default=None, repr=False)  # it may hold a password
    timeout_s: float = 2.0
    content: bool = True
    programs: tuple[Path, ...] = ()
    broker: str | None = field(default=None, repr=False)  # it holds a token

    @classmethod
    def from_settings(cls, settings: Settings | None = None) -> Governance:
        """Reads the settings; without ``settings`` those of this process. Raises `SettingsError`."""
        if settings is None:
            from lgov_core.settings import load_settings

            settings = load_settings()
        return cls(
            policy=settings.policy,
            audit=settings.audit or DEFAULT_AUDIT,
            audit_key=settings.audit_key,
            heads=settings.heads,
            redact=settings.redact,
            air=settings.air,
            store=settings.store,
            timeout_s=settings.timeout_s,
            content=settings.content,
        )

    def under(self, policy: Path | None, audit: Path | None = None) -> Governance:
        """The same under another policy (None: under none), with another record if one is named."""
        return replace(self, policy=policy, audit=audit or self.audit)

    def absolute(self) -> Governance:
        """The same for a process with another working folder. An address of a store stays as it is."""
        paths = {name: path.absolute() for name in _PATHS if (path := getattr(self, name)) is not None}
        store = self.store
        if store is not None and ("://" not in store or store.startswith("sqlite:///")):
            store = str(Path(store.removeprefix("sqlite:///")).absolute())
        return replace(self, **paths, store=store, programs=tuple(file.absolute() for file in self.programs))

    def as_json(self) -> dict[str, Any]:
        """JSON values for another process, with absolute paths. They may hold a password: of the store."""
        values = asdict(self.absolute()) | {"programs": list(map(str, self.programs))}
        return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}

    @classmethod
    def of_json(cls, value: dict[str, Any]) -> Governance:
        """Reads what `as_json` wrote. Raises `TypeError` for anything that is missing or unknown."""
        values = {name: Path(text) if name in _PATHS and text is not None else text for name, text in value.items()}
        values |= {"redact": tuple(value["redact"]), "programs": tuple(map(Path, value["programs"]))}
        return cls(**values)  # pyright: ignore[reportArgumentType]

    def places(self) -> GoverningPlaces:
        """The places that govern a run in the working folder, and those of its policy file. Raises `PolicyFileError`."""
        from lgov_core.policies.loader import named_places

        places = GoverningPlaces.of(self, Path.cwd(), programs=self.programs)
        return places if self.policy is None else places.and_of(named_places(self.policy))

    def begin_run(self, run_id: str, places: GoverningPlaces, *, below: Sequence[str] = ()) -> RunWatch:
        """Notes what governs a run that begins in the working folder, so that what changes until its end is found.

        ``below`` are further folders in which, as in the working folder, a later run may begin. Raises `LgovError`.
        """
        from lgov_core.audit import default_key_path

        files = dict.fromkeys((*places.rules, *map(str, settings_places(Path.cwd()))))
        keys = [str((self.audit_key or default_key_path()).absolute())]
        kept = (str(self.audit), str(DEFAULT_AUDIT), *places.kept)
        below_all = Below.of((Path.cwd(), *below), kept)
        return RunWatch(self.audit, files, run_id, keys=keys, below=below_all, programs=places.programs)

    def refuse_untrusted(self) -> None:
        """Raises `UntrustedChanges`, which are on record then: but for changed settings, which say where and by which key."""
        try:
            refuse_untrusted(self.audit)
        except UntrustedChanges as error:
            if not {"lgov.toml", PROJECT_FILE} & {Path(change.path).name for change in error.changes}:
                self.note_changes(error.changes, "refused", "refused at a start")
            raise

    def note_changes(self, changes: Sequence[RunChange], answer: str, what: str) -> None:
        """Puts ``changes`` of what governs on record, and ``what`` became of them, where there is one that can be written."""
        if changes and self.broker is None and self.audit.is_file():
            with suppress(LgovError), self.open_record("", "") as log:
                log.note("policy", what, on_record(changes, answer))

    def record_answers(self, store: Path) -> None:
        """Puts the answers in a file of approvals on record. Raises `LgovError` where they wait: for a record, or its key."""
        from lgov_core.policies import ApprovalRequests

        if not self.audit.is_file():
            raise InstrumentationError(f"there is no record {self.audit}")
        with self.open_record("", "") as log, closing(ApprovalRequests(store, quiet=True)) as requests:
            requests.put_on_record(log)

    # ------------------------------------------------------------------ opening

    def open(self, *, plugins: Sequence[object] = (), manager: Any = None, rewards: bool = True) -> OpenGovernance:
        """Opens everything in the right order: reward rules, policies, record, store, governor. For any thread.

        ``plugins`` take part beside those of ``manager`` (default: the installed ones). Without ``rewards`` calls earn no
        intermediate rewards but those of ``plugins``. The caller closes what is returned. Raises `LgovError` where there is no
        policy or something cannot be opened; then nothing stays open. Fails closed: a governor whose record is closed denies.
        """
        from lgov_core.governor import Governor
        from lgov_core.plugins import make_plugin_manager

        manager = make_plugin_manager() if manager is None else manager
        taking_part = list(plugins)
        if rewards:
            from lgov_core import air
            from lgov_core.air import AirPlugin, AirRules

            # A plugin that charges denials does that alone.
            others = (*plugins, *manager.get_plugins())
            charged = any(getattr(plugin, "charges_denials", False) is True for plugin in others)
            rules = self.reward_rules(AirRules(denied=0.0) if charged else None)
            taking_part.insert(
                0, AirPlugin(air.use(rules))
            )  # rules that the program registers are added to the set in use
        with ExitStack() as unfinished:
            policies, audit = self._open_policy_and_record()
            unfinished.callback(audit.close)
            store = None
            if self.store is not None:
                from lgov_core.store import open_store
                from lgov_core.trace.sink import StoreSink

                store = open_store(self.store)
                unfinished.callback(store.close)
                taking_part.append(StoreSink(store, content=self.content))
            governor = Governor(
                policies,
                plugins=taking_part,
                audit=audit,
                timeout_s=self.timeout_s,
                manager=manager,
                capture_content=self.content,
            )
            unfinished.pop_all()
        return OpenGovernance(self, governor, audit, store)

    def watch(self, *, plugins: Sequence[object] = ()) -> OpenGovernance:
        """Opens a governor that judges nothing and shows ``plugins`` what happens. Policy, record and store stay unopened."""
        from lgov_core.governor import Governor

        audit = None if self.broker is None else self._brokered_log(self.broker)
        return OpenGovernance(self, Governor(plugins=plugins, observe_only=True, capture_content=self.content), audit)

    def reward_rules(self, base: AirRules | None = None) -> RuleSet:
        """The rules in the file ``air``; without one a set with ``base`` or the built-in values. Raises `RewardFileError`."""
        from lgov_core import air
        from lgov_core.air import AirRules, RuleSet

        return RuleSet(base=base or AirRules()) if self.air is None else air.load_rules(self.air)

    def open_record(self, policy_digest: str, mode: str) -> AuditLog:
        """Opens the record, and makes its folder; the policies of that digest hold from now on, in ``mode``, as it says.

        Raises `LgovError`. Not for a box, whose record is kept outside.
        """
        from lgov_core.audit import AuditLog, default_signer

        make_folder(self.audit.parent)
        log = AuditLog(
            self.audit,
            policy_digest=policy_digest,
            signer=default_signer(self.audit_key),
            heads=self.heads,
            redact=self.redact or None,
        )
        with ExitStack() as unfinished:
            unfinished.callback(log.close)
            if policy_digest:
                log.begin_policy(policy_digest, str(self.policy), mode)
            unfinished.pop_all()
        return log

    def _open_policy_and_record(self) -> tuple[PolicySet, AuditLog | BrokeredLog]:
        if self.policy is None:
            raise InstrumentationError(
                "no policy was given", hint="name one with --policy, or write policy = in lgov.toml"
            )
        if self.broker is not None:
            from lgov_core.confine.broker import open_in_box

            return open_in_box(self.broker, self.policy, self.redact)
        from lgov_core.policies import load_policy_file

        self.refuse_untrusted()
        with in_force(self.places()):
            policies = load_policy_file(self.policy)
        log = self.open_record(policies.digest, policies.mode)
        record_answers(log, stores_of([policies]))
        return policies, log

    def _brokered_log(self, broker: str) -> BrokeredLog:
        from lgov_core.confine.broker import Broker, BrokeredLog

        return BrokeredLog(Broker(broker), redact=self.redact or None)


@dataclass(slots=True)
class OpenGovernance:
    """The parts that `Governance.open` opened. A context manager; otherwise close it once, at the end.

    ``problems`` are what went wrong while closing, in words.
    """

    governance: Governance
    governor: Governor
    audit: AuditLog | BrokeredLog | None = None
    store: TraceStore | None = None
    problems: list[str] = field(default_factory=list[str])

    def __enter__(self) -> OpenGovernance:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def connections(self, rollout_id: str, attempt: int, *, content: bool = True) -> list[Span]:
        """Spans of the connections that a box asked for since the last call; none outside of a box."""
        if self.governance.broker is None:
            return []
        from lgov_core.confine.broker import BrokeredLog

        assert isinstance(self.audit, BrokeredLog)
        return self.audit.connections(rollout_id, attempt, content=content)

    def close(self) -> list[str]:
        """Closes everything; goes on when one part cannot be closed. Returns `problems`."""
        self.governor.close()
        if self.governance.broker is None and self.audit is not None:
            record_answers(self.audit, stores_of(self.governor.policies))
        for opened in (self.audit, self.store):
            try:
                if opened is not None:
                    opened.close()
            except LgovError as error:
                self.problems.append(str(error))
        return self.problems


def stores_of(policies: Iterable[Any]) -> list[Path]:
    """The files in which people answer what these policies, and those of their sets, ask."""
    stores: list[Path] = []
    for policy in policies:
        if getattr(policy.judge, "by_rules", False):
            stores += stores_of(rule.policy for rule in policy.in_force().rules)
        elif file := getattr(getattr(policy, "requests", None), "place", ""):
            stores.append(Path(file))
    return list(dict.fromkeys(stores))


def record_answers(log: Any, stores: Iterable[Path]) -> None:
    """Puts answers in these files of approvals on a record; what cannot be read or written now waits."""
    from lgov_core.policies import ApprovalRequests

    for store in stores:
        with suppress(Exception):  # nothing in them may keep a program from its start or its end
            if store.is_file():
                with closing(ApprovalRequests(store, quiet=True)) as requests:
                    requests.put_on_record(log)


def make_folder(folder: Path) -> None:
    """Makes the folder of a record. Raises `InstrumentationError`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InstrumentationError(f"the folder {folder} for the audit record cannot be made: {error}") from error
