from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from lgov_core.errors import SettingsError
from lgov_core.settings import OTHER_VARIABLES, Settings, load_settings
from tests.service_links import service_links


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def load(folder: Path, flags: dict[str, object] | None = None, **environ: str) -> Settings:
    return load_settings(flags, folder=folder, environ=environ)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder from which the search for a settings file cannot leave."""
    (tmp_path / ".git").mkdir()
    return tmp_path


def test_every_variable_that_the_documents_name_may_be_set() -> None:
    root = Path(__file__).parents[2]
    known = {f"LGOV_{field.name.upper()}" for field in dataclasses.fields(Settings)} | OTHER_VARIABLES
    for page in (root / "README.md", *root.glob("docs/**/*.md"), *root.glob("examples/*/README.md")):
        named = re.findall(r"\bLGOV_(?!TEST_)[A-Z_]*[A-Z]\b", page.read_text(encoding="utf-8"))
        assert set(named) <= known, page


def test_without_any_source_every_value_is_a_default(project: Path) -> None:
    settings = load(project)
    assert settings == Settings()
    assert {settings.origin(field.name) for field in dataclasses.fields(Settings) if field.name != "origins"} == {
        "default"
    }


def test_later_sources_win_and_each_value_knows_where_it_came_from(project: Path) -> None:
    write(project / "lgov.toml", '# settings\nport = 1\nhost = "0.0.0.0"\n\ntimeout_s = 1.5\nstore = "a.sqlite"\n')
    settings = load(project, {"port": 3, "host": None, "policy": Path("p.yaml")}, LGOV_PORT="2", LGOV_HOST="::1")
    assert (settings.port, settings.origin("port")) == (3, "--port")
    assert (settings.host, settings.origin("host")) == ("::1", "LGOV_HOST")
    assert (settings.timeout_s, settings.origin("timeout_s")) == (1.5, "lgov.toml:5")
    assert (settings.policy, settings.origin("policy")) == (Path("p.yaml"), "--policy")
    assert (settings.audit, settings.origin("audit")) == (None, "default")


def test_a_flag_is_named_as_it_is_typed(project: Path) -> None:
    settings = load(project, {"timeout_s": 4, "key_secret_file": "k"})
    assert settings.origin("timeout_s") == "--timeout"
    assert settings.origin("key_secret_file") == "--key-secret-file"


def test_pyproject_is_read_with_the_line_in_its_own_table(project: Path) -> None:
    write(project / "pyproject.toml", '[project]\nhost = "no"\n[tool.other]\nport = 1\n[tool.lgov]\nport = 2\n')
    settings = load(project)
    assert (settings.port, settings.origin("port")) == (2, "pyproject.toml:6")
    assert settings.host == "127.0.0.1"


def test_the_nearest_file_counts_and_lgov_toml_wins_in_one_folder(project: Path) -> None:
    write(project / "lgov.toml", "port = 1\n")
    write(project / "a" / "pyproject.toml", "[tool.lgov]\nport = 2\n")
    write(project / "a" / "b" / "pyproject.toml", "[project]\n")
    assert load(project / "a" / "b").port == 2
    write(project / "a" / "lgov.toml", "port = 3\n")
    assert load(project / "a" / "b").port == 3
    assert load(project).port == 1


def test_the_search_does_not_leave_the_repository(project: Path) -> None:
    write(project / "lgov.toml", "port = 1\n")
    (project / "inner" / ".git").mkdir(parents=True)
    (project / "inner" / "deep").mkdir()
    assert load(project / "inner" / "deep").origin("port") == "default"


def test_paths_in_a_file_are_relative_to_its_folder(project: Path) -> None:
    write(
        project / "lgov.toml",
        'policy = "p.yaml"\naudit = "/var/audit.db"\nstore = "t.sqlite"\ncache = "~/models"\nendpoint = "http://h:1"\n',
    )
    (project / "deep").mkdir()
    settings = load(project / "deep")
    assert settings.policy == project / "p.yaml"
    assert settings.audit == Path("/var/audit.db")
    assert settings.store == str(project / "t.sqlite")
    assert settings.cache == Path.home() / "models"


def test_a_store_that_is_an_address_is_taken_as_it_is(project: Path) -> None:
    write(project / "lgov.toml", 'store = "sqlite:////data/t.sqlite"\n')
    assert load(project).store == "sqlite:////data/t.sqlite"


def test_paths_in_the_environment_are_relative_to_the_working_directory(project: Path) -> None:
    assert load(project, LGOV_POLICY="p.yaml").policy == Path("p.yaml")


@pytest.mark.parametrize(
    ("text", "where"),
    [('polcy = "p.yaml"\n', "lgov.toml:1"), ('[policies]\nfile = "p"\n', "lgov.toml:1")],
)
def test_an_unknown_name_in_a_file_is_an_error_that_names_the_nearest(project: Path, text: str, where: str) -> None:
    write(project / "lgov.toml", text)
    with pytest.raises(SettingsError, match="did you mean policy") as caught:
        load(project)
    assert where in str(caught.value)


def test_an_unknown_variable_is_an_error(project: Path) -> None:
    with pytest.raises(SettingsError, match=r"LGOV_POLCY.*did you mean LGOV_POLICY"):
        load(project, LGOV_POLCY="p.yaml")


@pytest.mark.parametrize("service", ["lgov", "lgov-staging", "lgov-store", "lgov-log"])
@pytest.mark.parametrize("address", ["10.0.0.1", "[fd00::1]"])
def test_variables_that_kubernetes_and_docker_write_for_a_service_are_not_settings(
    project: Path, service: str, address: str
) -> None:
    assert load(project, **service_links(service, address=address)) == Settings()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("LGOV_PORTS", "tcp://10.0.0.1:8321"),
        ("LGOV_SERVICE_HOST", "gpu-1"),
        ("LGOV_SERVICE_PORT", "http"),
        ("LGOV_PORT_8321", "tcp://10.0.0.1:8321"),
        ("LGOV_STORE_NAME", "traces"),
        ("LGOV_HOTS", "10.0.0.1"),
        ("LGOV_SERVICEHOST", "10.0.0.1"),
    ],
)
def test_a_variable_that_only_resembles_them_is_refused(project: Path, variable: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"there is no setting {variable}"):
        load(project, **{variable: value})


def test_the_port_of_a_service_is_not_the_setting_port(project: Path) -> None:
    write(project / "lgov.toml", "port = 1\n")
    assert load(project, LGOV_PORT="tcp://10.0.0.1:8321").port == 1
    assert load(project, LGOV_PORT="8321").port == 8321


def test_unknown_flags_and_origins_are_errors(project: Path) -> None:
    with pytest.raises(SettingsError, match="colour"):
        load(project, {"colour": "red"})
    with pytest.raises(SettingsError, match="did you mean host"):
        load(project).origin("hosts")


def test_variables_of_other_programs_and_of_child_processes_are_left_alone(project: Path) -> None:
    assert load(project, PATH="/bin", XLGOV_PORT="1", LGOV_ROLLOUT_ID="rol_1", LGOV_ATTEMPT="1") == Settings()


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ('port = "80"', "a whole number from 0 to 65535"),
        ("port = 65536", "a whole number from 0 to 65535"),
        ("port = true", "a whole number from 0 to 65535"),
        ("timeout_s = 0", "a number of seconds above 0"),
        ("timeout_s = inf", "a number of seconds above 0"),
        ("timeout_s = true", "a number of seconds above 0"),
        ("policy = 3", "the path of a file"),
        ('policy = " "', "the path of a file"),
        ("store = []", "a path or an address"),
        ('endpoint = "localhost:8000"', "a URL"),
        ('endpoint = "http://[::1"', "a URL"),
        ("host = {}", "text"),
        ('redact = "password"', "a list of names"),
        ("redact = []", "a list of names"),
        ("redact = [1]", "a list of names"),
    ],
)
def test_a_value_of_the_wrong_type_names_the_setting_its_origin_and_what_is_wanted(
    project: Path, line: str, wanted: str
) -> None:
    write(project / "lgov.toml", f"# first\n{line}\n")
    with pytest.raises(SettingsError) as caught:
        load(project)
    assert line.split()[0] in caught.value.message
    assert "lgov.toml:2" in caught.value.message
    assert wanted in caught.value.message


def test_names_to_redact_are_a_list_and_in_a_variable_stand_between_commas(project: Path) -> None:
    write(project / "lgov.toml", 'redact = ["password", "api_key"]\n')
    assert load(project).redact == ("password", "api_key")
    settings = load(project, LGOV_REDACT="token, iban")
    assert (settings.redact, settings.origin("redact")) == (("token", "iban"), "LGOV_REDACT")
    assert load(project, {"redact": ("card",)}, LGOV_REDACT="token").redact == ("card",)
    with pytest.raises(SettingsError, match=r"redact \(LGOV_REDACT\) must be a list of names"):
        load(project, LGOV_REDACT="token,")


def test_a_wrong_variable_is_named(project: Path) -> None:
    with pytest.raises(SettingsError, match=r"port \(LGOV_PORT\) must be a whole number"):
        load(project, LGOV_PORT="eighty")


@pytest.mark.parametrize("text", ["port = 1\nhost = \n", "port = 1\nport = 2\n", 'port = 1\nhost = "unclosed'])
def test_a_broken_file_names_file_and_line(project: Path, text: str) -> None:
    path = write(project / "lgov.toml", text)
    with pytest.raises(SettingsError, match="not valid TOML") as caught:
        load(project)
    assert f"{path}:2" in caught.value.message


def test_a_file_that_is_not_text_is_an_error(project: Path) -> None:
    (project / "lgov.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="cannot be read"):
        load(project)


def test_a_table_of_the_wrong_kind_is_an_error(project: Path) -> None:
    write(project / "pyproject.toml", "[tool]\nlgov = 3\n")
    with pytest.raises(SettingsError, match="not a table"):
        load(project)


def test_settings_cannot_be_changed(project: Path) -> None:
    settings = load(project)
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.port = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        settings.origins["port"] = "elsewhere"  # type: ignore[index]


def test_a_setting_as_text_wins_over_a_flag_and_says_where_it_is_from() -> None:
    texts = {"redact": "password, token", "port": "9", "timeout_s": "0.5", "max_running": "3"}
    settings = load_settings({"port": 8}, texts=texts, environ={"LGOV_REDACT": "name"})
    assert (settings.redact, settings.port, settings.timeout_s, settings.max_running) == (
        ("password", "token"),
        9,
        0.5,
        3,
    )
    assert settings.origin("port") == "--set port"
    for name, text in (("prot", "9"), ("port", "many"), ("max_waiting", "0"), ("drain_s", "-1")):
        with pytest.raises(SettingsError, match=f"--set {name}"):
            load_settings(texts={name: text}, environ={})
