"""The files of deploy/ are valid, and agree with each other and with lgov."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from lgov_core._util.files import open_to_others
from lgov_core.audit import verify
from lgov_core.commands import cli
from lgov_core.gateway.limits import Admission, Limits, Metrics
from lgov_core.policies import load_policy_file
from lgov_core.settings import Settings
from lgov_core.testing import ScriptedModelServer
from tests.core.test_packaging import PROJECT
from tests.service_links import service_links

DEPLOY = Path(__file__).parents[2] / "deploy"
MANIFESTS = {
    f"{path.name}:{one['kind']}": one
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for one in yaml.safe_load_all(path.read_text())
}
KNOWN = {"FROM", "RUN", "COPY", "ENV", "USER", "WORKDIR", "VOLUME", "EXPOSE", "ENTRYPOINT", "CMD"}
STATEFUL = MANIFESTS["statefulset.yaml:StatefulSet"]["spec"]["template"]["spec"]
(CONTAINER,) = STATEFUL["containers"]
(GUARD,) = STATEFUL["initContainers"]
PAGE = (DEPLOY.parent / "docs" / "how-to" / "deploy.md").read_text()


def instructions() -> list[tuple[str, str]]:
    """The instructions of the container file, continued lines joined."""
    text = re.sub(r"\\\n\s*", "", (DEPLOY / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines)]


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_has_the_schema_of_kubernetes(name: str) -> None:
    kubernetes_validate.validate(MANIFESTS[name], kubernetes_validate.latest_version(), strict=True)


OPTIONAL = {
    manifest["kind"]: manifest
    for path in sorted((DEPLOY / "kubernetes" / "optional").glob("*.yaml"))
    for manifest in yaml.safe_load_all(path.read_text())
}


def test_the_autoscaler_scales_the_endpoint_by_a_metric_that_it_has() -> None:
    scaler = OPTIONAL["HorizontalPodAutoscaler"]
    kubernetes_validate.validate(scaler, kubernetes_validate.latest_version(), strict=True)
    target, stateful = scaler["spec"]["scaleTargetRef"], MANIFESTS["statefulset.yaml:StatefulSet"]
    assert (target["kind"], target["name"]) == (stateful["kind"], stateful["metadata"]["name"])
    (metric,) = scaler["spec"]["metrics"]
    names = {reading[1] for reading in Metrics(Admission(Limits()), {})._of_admission()}  # pyright: ignore[reportPrivateUsage]
    assert metric["pods"]["metric"]["name"] in names


def test_the_monitor_finds_the_service_and_asks_for_metrics_with_a_key() -> None:
    monitor, service = OPTIONAL["ServiceMonitor"]["spec"], MANIFESTS["service.yaml:Service"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (endpoint,) = monitor["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert endpoint["path"] == "/metrics"
    assert endpoint["authorization"]["credentials"]["name"] == "lgov"


def shape(needed: str, **fields: Any) -> dict[str, Any]:
    """A schema of an object with these fields and no others; those in ``needed`` it must have."""
    return {"type": "object", "additionalProperties": False, "required": needed.split(), "properties": fields}


NUMBER, TEXT, OBJECT = {"type": "integer", "minimum": 0}, {"type": "string", "minLength": 1}, {"type": "object"}
#: Of the operators' own kinds, which kubernetes_validate does not know: the fields that these files use, and no others.
OWN_KINDS = {
    "monitoring.coreos.com/v1": shape(
        "selector endpoints",
        selector=shape("", matchLabels=OBJECT),
        endpoints={
            "type": "array",
            "items": shape(
                "port",
                **dict.fromkeys(("port", "path"), TEXT),
                interval={"type": "string", "pattern": r"^\d+(ms|s|m|h)$"},
                authorization=shape("credentials", credentials=shape("key", name=TEXT, key=TEXT)),
            ),
        },
    ),
    "ray.io/v1": shape(
        "entrypoint rayClusterSpec",
        entrypoint=TEXT,
        shutdownAfterJobFinishes={"type": "boolean"},
        **dict.fromkeys(("ttlSecondsAfterFinished", "backoffLimit"), NUMBER),
        rayClusterSpec=shape(
            "headGroupSpec",
            headGroupSpec=shape("rayStartParams template", rayStartParams=OBJECT, template=OBJECT),
            workerGroupSpecs={
                "type": "array",
                "items": shape(
                    "groupName minReplicas maxReplicas rayStartParams template",
                    groupName=TEXT,
                    **dict.fromkeys(("replicas", "minReplicas", "maxReplicas"), NUMBER),
                    **dict.fromkeys(("rayStartParams", "template"), OBJECT),
                ),
            },
        ),
    ),
}


@pytest.mark.parametrize("kind", ["ServiceMonitor", "RayJob"])
def test_a_manifest_of_an_operator_has_the_fields_of_its_kind(kind: str) -> None:
    manifest = OPTIONAL[kind]
    schema = OWN_KINDS[manifest["apiVersion"]]
    jsonschema.validate(manifest["spec"], schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**manifest["spec"], "spek": {}}, schema)


def test_what_operates_the_endpoint_is_there() -> None:
    assert "poddisruptionbudget.yaml:PodDisruptionBudget" in MANIFESTS
    assert set(OPTIONAL) == {"HorizontalPodAutoscaler", "ServiceMonitor", "RayJob"}


def test_the_ray_job_runs_a_training_as_the_command_line_takes_it() -> None:
    job = OPTIONAL["RayJob"]["spec"]
    program, command, *words = shlex.split(job["entrypoint"])
    assert program == "lgov"
    options = {word for word in words if word.startswith("--")}
    assert options <= set(re.findall(r"--[\w-]+", CliRunner().invoke(cli, [command, "--help"]).output))
    cluster = job["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        template = {"metadata": {"name": "pod"}, **group["template"], "apiVersion": "v1", "kind": "Pod"}
        kubernetes_validate.validate(template, kubernetes_validate.latest_version(), strict=True)


def test_a_pod_gets_calls_while_it_is_ready_and_is_restarted_when_it_does_not_answer() -> None:
    paths = [CONTAINER[f"{probe}Probe"]["httpGet"]["path"] for probe in ("readiness", "liveness")]
    assert paths == ["/readyz", "/healthz"]


def test_the_schema_check_finds_an_unknown_field() -> None:
    broken = {**MANIFESTS["service.yaml:Service"], "spek": {}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, kubernetes_validate.latest_version(), strict=True)


def test_what_a_pod_mounts_and_reads_is_declared() -> None:
    volumes = {one["name"] for one in STATEFUL["volumes"]}
    claims = MANIFESTS["statefulset.yaml:StatefulSet"]["spec"]["volumeClaimTemplates"]
    assert {one["name"] for one in CONTAINER["volumeMounts"]} == volumes | {one["metadata"]["name"] for one in claims}
    data = MANIFESTS["config.yaml:ConfigMap"]["data"]
    used = [one.get("valueFrom", {}).get("configMapKeyRef", {}).get("key") for one in CONTAINER["env"]]
    assert {key for key in used if key} | {"policy.yaml"} == set(data)
    labels = MANIFESTS["service.yaml:Service"]["spec"]["selector"]
    assert labels == MANIFESTS["networkpolicy.yaml:NetworkPolicy"]["spec"]["podSelector"]["matchLabels"]


def test_agents_and_prometheus_may_be_in_another_namespace_that_has_the_label() -> None:
    (rule,) = MANIFESTS["networkpolicy.yaml:NetworkPolicy"]["spec"]["ingress"]
    client = {"matchLabels": {"lgov-client": "true"}}
    assert rule["from"] == [{"podSelector": client}, {"namespaceSelector": client, "podSelector": client}]


def test_the_password_of_store_and_ledger_is_of_the_secret() -> None:
    (password,) = (variable for variable in CONTAINER["env"] if variable["name"] == "PGPASSWORD")
    assert password["valueFrom"]["secretKeyRef"] == {"name": "lgov", "key": "pgpassword", "optional": True}


def test_lgov_reads_the_secret_as_the_pod_mounts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (mode,) = (one["secret"]["defaultMode"] for one in STATEFUL["volumes"] if "secret" in one)
    secret = tmp_path / "secret"
    secret.write_text("s" * 16)
    secret.chmod(mode)
    assert open_to_others(secret), "a group of one's own file is others"
    monkeypatch.setattr("os.geteuid", lambda: STATEFUL["securityContext"]["runAsUser"])  # the mounted file is root's
    assert not open_to_others(secret)
    secret.chmod(mode | 0o004)
    assert open_to_others(secret)


PROGRAMS = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The address of `lgov serve` with variables, files and command of the pod, and the folder that has what it mounts."""
    commands = re.findall(r"```console\n(.*?)```", PAGE, re.S)[0]
    subprocess.run(["bash", "-euc", commands], cwd=tmp_path, env={**os.environ, "PATH": PROGRAMS}, check=True)
    data = MANIFESTS["config.yaml:ConfigMap"]["data"]
    places: dict[str, Path] = {}
    for mount in CONTAINER["volumeMounts"]:
        places[mount["mountPath"]] = folder = tmp_path / "mounted" / mount["name"]
        folder.mkdir(parents=True)
    for volume in STATEFUL["volumes"]:
        for item in volume.get("secret", volume.get("configMap", {})).get("items", ()):
            text = data[item["key"]] if "configMap" in volume else (tmp_path / "keys" / item["key"]).read_text()
            path = tmp_path / "mounted" / volume["name"] / item["path"]
            path.write_text(text)
            path.chmod(0o600)
    image = dict(word.split("=", 1) for name, rest in instructions() if name == "ENV" for word in shlex.split(rest))
    own = {variable["name"]: variable["value"] for variable in CONTAINER["env"] if "value" in variable}
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LGOV_")}
    (command,) = (yaml.safe_load(rest) for name, rest in instructions() if name == "CMD")

    def here(text: str) -> str:
        return next(
            (text.replace(at, str(place), 1) for at, place in places.items() if text.startswith(f"{at}/")), text
        )

    with ScriptedModelServer(lambda _: "Hello.") as model:
        variables = {**image, **own, **service_links("lgov"), "LGOV_UPSTREAM": model.base_url, "LGOV_HOST": "127.0.0.1"}
        process = subprocess.Popen(
            [sys.executable, "-m", "lgov_core", *map(here, command), "--port", "0"],
            cwd=places["/data"],
            env={**clean, **{name: here(value) for name, value in variables.items()}, "PATH": PROGRAMS},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[-1].removesuffix("/v1"), tmp_path
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0


def test_in_the_pod_admin_keys_revocation_and_signed_heads_work_beside_a_service_of_lgov(pod: tuple[str, Path]) -> None:
    url, folder = pod
    admin = (folder / "keys" / "admin-key").read_text()
    made = httpx.post(f"{url}/admin/keys", json={"rollout_id": "ada", "attempt": 1}, headers={"x-api-key": admin})
    key = made.json()["key"]
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}

    def call() -> httpx.Response:
        return httpx.post(f"{url}/v1/chat/completions", json=body, headers={"x-api-key": key}, timeout=30)

    assert call().status_code == 200
    mounted = folder / "mounted"
    (mounted / "secret" / "revoked").write_text(f"{key}\n")
    assert call().status_code == 401
    heads, public = mounted / "heads" / "audit.jsonl", folder / "keys" / "audit.key.pub"
    report = verify(mounted / "data" / "audit.db", key=public, head=heads)
    assert report.ok
    assert report.heads > 0
    assert not list((mounted / "data").glob("*heads*"))


def test_the_monitor_has_the_admin_key_that_the_pod_reads() -> None:
    (endpoint,) = OPTIONAL["ServiceMonitor"]["spec"]["endpoints"]
    image = " ".join(rest for name, rest in instructions() if name == "ENV")
    assert f"LGOV_ADMIN_KEYS_FILE=/run/secrets/lgov/{endpoint['authorization']['credentials']['key']}" in image


def test_a_unit_gives_lgov_every_file_that_it_reads() -> None:
    unit = (DEPLOY / "lgov.service").read_text()
    assert set(re.findall(r"%d/([\w.-]+)", unit)) == set(re.findall(r"^LoadCredential=([\w.-]+):", unit, re.M))
    assert "Restart=always\n" in unit  # SIGHUP ends lgov with status 0
    installed = re.findall(r'/opt/lgov/bin/pip install "lgov\[([\w,]+)\]"', PAGE)[0].split(",")
    assert {"postgres", "sign"} <= set(installed)


def test_a_pod_that_ends_takes_calls_for_a_moment_and_has_the_time_to_drain() -> None:
    program, seconds = CONTAINER["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "sleep"
    assert int(seconds) >= 3
    assert STATEFUL["terminationGracePeriodSeconds"] >= int(seconds) + Settings().drain_s + 5


def test_pods_get_no_variables_of_services() -> None:
    cluster = OPTIONAL["RayJob"]["spec"]["rayClusterSpec"]
    groups = (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])
    specs = [STATEFUL, *(group["template"]["spec"] for group in groups)]
    assert [spec["enableServiceLinks"] for spec in specs] == [False] * len(specs)


@pytest.mark.parametrize(
    ("pod_name", "store", "starts"),
    [
        ("lgov-0", "/data/traces.sqlite", True),
        ("lgov-1", "/data/traces.sqlite", False),
        ("lgov-10", "sqlite:////data/traces.sqlite", False),
        ("lgov-1", "", False),
        ("lgov-1", "postgresql://lgov@db/traces", True),
        ("lgov-10", "postgres://lgov@db/traces", True),
    ],
)
def test_a_second_replica_with_a_store_of_its_own_does_not_start(pod_name: str, store: str, starts: bool) -> None:
    assert GUARD["image"] == CONTAINER["image"], "its LGOV_STORE is that of the image too"
    stores = [[one for one in container["env"] if one["name"] == "LGOV_STORE"] for container in (GUARD, CONTAINER)]
    assert stores[0] == stores[1]
    done = subprocess.run(
        [*GUARD["command"], *GUARD["args"]],
        env={"HOSTNAME": pod_name, "LGOV_STORE": store},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (0 if starts else 1)
    assert (f"{pod_name} would have a store of its own" in done.stdout) is not starts


def test_the_policy_of_the_manifests_loads(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(MANIFESTS["config.yaml:ConfigMap"]["data"]["policy.yaml"])
    assert load_policy_file(tmp_path / "policy.yaml").rules


def test_what_a_rule_keeps_lies_where_a_pod_can_write() -> None:
    texts = (PAGE, (DEPLOY / "kubernetes" / "config.yaml").read_text())
    folders = {folder for text in texts for folder in re.findall(r"store: (/\w+)/", text)}
    assert folders == {"/data"}
    assert folders <= {mount["mountPath"] for mount in CONTAINER["volumeMounts"] if not mount.get("readOnly")}


def test_the_container_runs_lgov_as_an_ordinary_user() -> None:
    found = instructions()
    assert {name for name, _ in found} <= KNOWN
    last: dict[str, str] = dict(found)
    assert (last["USER"], last["EXPOSE"]) == (str(STATEFUL["securityContext"]["runAsUser"]), "8321")
    assert not any(
        name == "COPY" and not rest.startswith("--from") for name, rest in found[found.index(("USER", "10001")) :]
    )
    extras = re.findall(r"/source\[([\w,]+)\]", str(found))[0].split(",")
    assert set(extras) <= set(PROJECT["project"]["optional-dependencies"])


def test_every_command_and_variable_is_one_of_lgov() -> None:
    unit = (DEPLOY / "lgov.service").read_text()
    texts = [unit, (DEPLOY / "Dockerfile").read_text(), str(CONTAINER["env"])]
    variables = {name.lower() for text in texts for name in re.findall(r"\bLGOV_(\w+)", text)}
    assert variables <= set(Settings.__dataclass_fields__)
    (command,) = re.findall(r"^ExecStart=\S+/lgov (.*)", unit, re.M)
    (started,) = (yaml.safe_load(rest) for name, rest in instructions() if name == "CMD")
    for words in (shlex.split(command), started):
        options = {word for word in words if word.startswith("--")}
        assert options <= set(re.findall(r"--[\w-]+", CliRunner().invoke(cli, [words[0], "--help"]).output))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_the_unit_is_one_that_systemd_reads(tmp_path: Path) -> None:
    unit = tmp_path / "lgov.service"
    text = (DEPLOY / "lgov.service").read_text()
    unit.write_text(text.replace("/opt/lgov/bin/lgov", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=60, check=False)
    mine: Any = [line for line in done.stderr.splitlines() if "lgov.service" in line]
    assert mine == []
