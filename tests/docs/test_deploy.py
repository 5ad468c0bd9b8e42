"""The files of deploy/ are valid, and agree with each other and with lgov."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from lgov_core._util.files import open_to_others
from lgov_core.commands import cli
from lgov_core.gateway.limits import Admission, Limits, Metrics
from lgov_core.policies import load_policy_file
from lgov_core.settings import Settings
from tests.core.test_packaging import PROJECT

DEPLOY = Path(__file__).parents[2] / "deploy"
MANIFESTS = {
    f"{path.name}:{one['kind']}": one
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for one in yaml.safe_load_all(path.read_text())
}
KNOWN = {"FROM", "RUN", "COPY", "ENV", "USER", "WORKDIR", "VOLUME", "EXPOSE", "ENTRYPOINT", "CMD"}
STATEFUL = MANIFESTS["statefulset.yaml:StatefulSet"]["spec"]["template"]["spec"]
(CONTAINER,) = STATEFUL["containers"]


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
    names = {reading[1] for reading in Metrics(Admission(Limits()))._of_admission()}  # pyright: ignore[reportPrivateUsage]
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


def test_the_policy_of_the_manifests_loads(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(MANIFESTS["config.yaml:ConfigMap"]["data"]["policy.yaml"])
    assert load_policy_file(tmp_path / "policy.yaml").rules


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
