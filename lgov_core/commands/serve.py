"""``lgov serve``: the training endpoint."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

import click

from lgov_core.commands.group import Exit, write_result
from lgov_core.commands.options import (
    PATH,
    EngineChoice,
    audit_option,
    command,
    engine_option,
    key_secret_option,
    set_option,
    show_admin_key_option,
)
from lgov_core.commands.traces import mounted_window
from lgov_core.errors import EndpointError, PolicyFileError, SettingsError
from lgov_core.models.load import wait_without_spinning
from lgov_core.settings import Settings, load_settings, without_password
from lgov_core.train.settings import TrainSettings, load_train_settings

if TYPE_CHECKING:
    from lgov_core.gateway.access import KeyRing
    from lgov_core.gateway.protocol import Engine
    from lgov_core.gateway.server import EndpointServer
    from lgov_core.store import RolloutQueue
    from lgov_core.trace.otlp_export import CollectorSink

#: Tokens of a reply, unless model.max_new_tokens says another bound: coding agents write whole files.
_REPLY_TOKENS: Final = 4096


@command(Exit.OK, Exit.FINDING, Exit.USAGE, Exit.INTERRUPTED)
@click.option(
    "--model", help="Model to serve from this process: tiny, smollm2, a promoted name, a folder, or a hub name."
)
@engine_option
@click.option(
    "--upstream",
    help="Base URL of an OpenAI-compatible server to forward calls to, with /v1; separate several by commas.",
)
@click.option("--store", help="Trace store that every call is committed to. [default: nothing is recorded]")
@click.option("--host", help="Address to listen on. [default: 127.0.0.1]")
@click.option("--port", type=int, help="Port to listen on; 0 takes any free one. [default: 8321]")
@key_secret_option
@click.option("--policy", type=PATH, help="Policy file, applied to requests, replies and each proposed tool call.")
@audit_option
@set_option(
    "Any setting of lgov.toml, such as max_running=64, or of a training's model and vllm, such as vllm.python=PATH"
)
@show_admin_key_option
def serve(
    engine: EngineChoice,
    assignments: Mapping[str, str],
    show_admin_key: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Serve an OpenAI-compatible endpoint that records every call exactly: tokens, logprobs, weights version.

    The address is written to standard output as soon as calls are answered. Point an agent at it with OPENAI_BASE_URL.
    SIGTERM lets running calls end; so does Ctrl-C.

    With --policy the agent's process need not be governed: what a policy denies never reaches the agent, and the reply says
    why. A streamed reply is then held until all of it is judged. Only a policy named here or in the settings applies.

    With --engine vllm a vLLM process generates the tokens; lgov writes its prompts and reads its replies.

    To train on what clients do with the model: lgov train --serve.
    """
    settings = load_settings(flags, texts={name: text for name, text in assignments.items() if "." not in name})
    training = load_train_settings(
        None,
        flags={("model", "max_new_tokens"): _REPLY_TOKENS, **engine.as_flags()},
        assignments={name: text for name, text in assignments.items() if "." in name},
        environ={},
    )
    keys = _keys(settings, show_admin_key=show_admin_key)
    stopped = threading.Event()  # by SIGTERM, so that the store is closed before the process ends
    from lgov_core.gateway.operation import log_event, logging_by

    with contextlib.ExitStack() as opened:
        opened.enter_context(logging_by(settings))
        if training.model.engine == "vllm":
            model: Engine = opened.enter_context(_vllm(settings, training))
        else:
            model = _engine(settings, training)
        for number in (
            signal.SIGTERM,
            getattr(signal, "SIGHUP", signal.SIGTERM),
        ):  # until here it ends the process at once
            signal.signal(number, lambda _number, _frame: stopped.set())
        server = opened.enter_context(_serving(settings, model, keys))
        _write_address(server, model, settings, keys if show_admin_key else None, as_json=as_json)
        stopped.wait()
        log_event(logging.INFO, "stopping", {"running_calls_have_s": settings.drain_s})


@contextlib.contextmanager
def _serving(settings: Settings, engine: Engine, keys: KeyRing | None) -> Generator[EndpointServer]:
    """The running endpoint with its store and policy; all of them are closed at the end."""
    from lgov_core.gateway.limits import Limits
    from lgov_core.gateway.server import EndpointServer
    from lgov_core.gateway.upstream import RegisteredModels
    from lgov_core.governance import DEFAULT_AUDIT, Governance

    with contextlib.ExitStack() as open_things:
        recorded, sink = _recording(settings, open_things)
        gate = audit = None
        if settings.policy is not None:
            from lgov_core.gateway.judging import JudgingLimits
            from lgov_core.gateway.policy_gate import open_gate

            judging = JudgingLimits(settings.max_texts, settings.max_characters, settings.judging_s)
            sys.setswitchinterval(0.001)  # threads that judge let the event loop go on at once
            audit = settings.audit or DEFAULT_AUDIT
            with _of_settings():
                gate = open_gate(Governance.from_settings(settings), store=recorded, limits=judging)
            open_things.callback(gate.close)
        with _of_settings():
            limits = Limits(
                max_running=settings.max_running,
                max_waiting=settings.max_waiting,
                drain_s=settings.drain_s,
                allowed_hosts=settings.allowed_hosts,
                strict_fields=settings.strict_fields,
                tls=_tls(settings),
                metrics_by=settings.metrics_by,
            )
        server = EndpointServer(
            [RegisteredModels(timeout_s=settings.upstream_timeout_s), engine],
            recorded,
            keys=keys,
            gate=gate,
            limits=limits,
            host=settings.host,
            port=settings.port,
        )
        if sink is not None:
            server.app.state.endpoint.metrics.add_source(sink.readings)
        window = None
        if settings.store is not None:
            policies = () if settings.policy is None else (settings.policy,)
            window = mounted_window(str(settings.store), audit=audit, policies=policies, by_key=keys is not None)
        if window is not None:
            open_things.callback(window.close)
            server.app.mount(window.path, window.app(keys))
        open_things.enter_context(server)
        if window is not None:
            window.started(server.url)
        yield server


def _recording(
    settings: Settings, open_things: contextlib.ExitStack
) -> tuple[RolloutQueue | None, CollectorSink | None]:
    """The store, and what sends to a collector what is added to it; both are closed with ``open_things``."""
    if settings.store is None:
        if settings.otlp is not None:
            raise SettingsError("otlp sends what is recorded, and no store is set", hint="give --store")
        click.echo("note: no store is set, so nothing is recorded (--store)", err=True)
        return None, None
    from lgov_core.store import open_store

    recorded = open_things.enter_context(contextlib.closing(open_store(settings.store)))
    if settings.otlp is None:
        return recorded, None
    from lgov_core.trace.otlp_export import Collector, CollectorSink, headers_in_environment

    # Few attempts and a short queue: what waits has the bodies of its calls.
    collector = Collector(settings.otlp, headers=headers_in_environment(), attempts=3)
    sink = CollectorSink(collector, content=settings.content, queue=2048)
    open_things.callback(sink.close)
    recorded.on_added = sink.lgov_observe
    return recorded, sink


def _tls(settings: Settings) -> tuple[str, ...]:
    """The files of the certificate and its key; none for HTTP. Raises `SettingsError` for a half of it."""
    files = tuple(str(path) for path in (settings.tls_cert, settings.tls_key) if path is not None)
    if len(files) == 1:
        raise SettingsError("TLS needs both tls_cert and tls_key", hint="set the file that is missing")
    return files


def _write_address(
    server: EndpointServer, engine: Engine, settings: Settings, admin: KeyRing | None, *, as_json: bool
) -> None:
    """Writes the address and, if ``admin`` is given, its admin key."""
    admin_key = None if admin is None else admin.admin
    about = {
        "url": server.url,
        "base_url": server.base_url,
        "models": list(engine.models),
        "store": None if settings.store is None else without_password(settings.store),
        "policy": None if settings.policy is None else str(settings.policy),
        "admin_key": admin_key,
    }
    text = f"serving {', '.join(engine.models)} on {server.base_url}"
    write_result(about, text if admin_key is None else f"{text}\nadmin key {admin_key}", as_json=as_json)


def _keys(settings: Settings, *, show_admin_key: bool) -> KeyRing | None:
    """The keys that calls need; None where none are set. Raises `SettingsError` where keys are required.

    ``show_admin_key``: the admin key will be printed, which requires keys.
    """
    from lgov_core.gateway.access import AdminKeyFile, KeyRing, RevokedKeys, read_secrets
    from lgov_core.gateway.door import is_loopback

    path = settings.key_secret_file
    if path is None:
        if settings.admin_keys_file is not None:
            raise SettingsError("admin_keys_file needs a key secret", hint="give --key-secret-file too")
        if not is_loopback(settings.host):
            raise SettingsError(
                f"{settings.host} can be reached from other machines and no keys were given",
                hint="give --key-secret-file",
            )
        if show_admin_key:
            raise SettingsError("there is no admin key without a key secret", hint="give --key-secret-file")
        return None
    with _of_settings():
        return KeyRing(
            read_secrets(path),
            admin_keys=None if settings.admin_keys_file is None else AdminKeyFile(settings.admin_keys_file),
            is_revoked=None if settings.revoked_keys is None else RevokedKeys(settings.revoked_keys),
        )


@contextlib.contextmanager
def _of_settings() -> Generator[None]:
    """Raises as `SettingsError` what is wrong with a value, or with the file that it names."""
    try:
        yield
    except (EndpointError, PolicyFileError) as error:
        raise SettingsError(error.message, hint=error.hint) from error


def _vllm(settings: Settings, training: TrainSettings) -> AbstractContextManager[Engine]:
    """VLLM with the model; its output goes to ``.lgov/vllm/``."""
    if settings.model is None or settings.upstream is not None:
        raise SettingsError(
            "--engine vllm serves one model", hint="lgov serve --engine vllm --model smollm2, without --upstream"
        )
    from lgov_core.governance import DEFAULT_AUDIT
    from lgov_core.models import load_model, model_source
    from lgov_core.models.load import dtype_for
    from lgov_core.server.recipe import device_for, vllm_options
    from lgov_core.train.engines.vllm_engine import open_vllm

    return open_vllm(
        load_model(settings.model, weights=False),
        model_source(settings.model),
        DEFAULT_AUDIT.parent / "vllm",
        vllm_options(
            training.vllm,
            dtype_for(settings.model, training.model.dtype, device_for(None)),
            url=training.model.engine_url,
        ),
        max_new_tokens=training.model.max_new_tokens,
    )


def _engine(settings: Settings, training: TrainSettings) -> Engine:
    if (settings.model is None) == (settings.upstream is None):
        count = "neither" if settings.model is None else "both"
        raise SettingsError(
            f"one of model and upstream must be set, {count} is",
            hint="lgov serve --model smollm2, or lgov serve --upstream http://127.0.0.1:8000/v1",
        )
    if settings.upstream is not None:
        try:
            from lgov_core.gateway.upstream import UpstreamEngine
        except ImportError as error:
            raise EndpointError(f"the endpoint needs {error.name}", hint="pip install 'lgov[gateway]'") from error
        urls = [url.strip() for url in settings.upstream.split(",")]
        key = os.environ.get(settings.upstream_key_env) or None
        return UpstreamEngine(urls, api_key=key, timeout_s=settings.upstream_timeout_s, speaks=settings.upstream_speaks)
    wait_without_spinning()
    from lgov_core.gateway.engine.embedded import EmbeddedEngine
    from lgov_core.models import load_model
    from lgov_core.models.load import dtype_for

    name = str(settings.model)
    model = load_model(name, dtype=dtype_for(name, training.model.dtype, "cpu"))
    return EmbeddedEngine(model, max_new_tokens=training.model.max_new_tokens)
