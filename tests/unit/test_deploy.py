"""What is deployed: every metric and label in the dashboard and the alerts exists, the container and the unit are tight, and the
handbook knows every log line, metric and alert."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest

from tardis_machine.settings.catalogue import Catalogue
from tardis_machine.settings.commands import COMMANDS
from tardis_machine.telemetry import METRICS, render_metrics

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
HANDBOOK = (ROOT / "docs" / "operations.md").read_text()

# What Prometheus itself adds to every series.
TARGET = {"instance", "job"}
WORDS = {
    "sum",
    "max",
    "min",
    "by",
    "rate",
    "increase",
    "changes",
    "histogram_quantile",
    "or",
    "and",
    "unless",
    "offset",
    "m",
    "h",
}


def known_series() -> dict[str, set[str]]:
    """Every series there is, with its labels."""
    process = re.findall(r"^# TYPE (tardis_machine_process_\w+)", render_metrics().decode(), re.MULTILINE)
    found = {"up": TARGET} | dict.fromkeys(process, TARGET)
    for metric in METRICS:
        labels = {*metric.label_names, *TARGET}
        if metric.kind == "histogram":
            found |= {f"{metric.full_name}_bucket": labels | {"le"}}
            found |= {f"{metric.full_name}_{part}": labels for part in ("sum", "count")}
        else:
            found[metric.full_name] = labels
    return found


def read_yaml(text: str) -> Any:
    """The part of YAML that rule files are written in: mappings, lists of them, texts in quotes, plain or folded."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return _read_block(lines, 0)


def _read_block(lines: list[str], depth: int) -> Any:
    if lines[0].lstrip().startswith("- "):
        listed: list[Any] = []
        while lines and _depth(lines[0]) == depth:
            lines[0] = lines[0].replace("- ", "  ", 1)
            listed.append(_read_block(lines, depth + 2))
        return listed
    mapping: dict[str, Any] = {}
    while lines and _depth(lines[0]) == depth:
        name, colon, value = lines.pop(0).strip().partition(":")
        assert colon, name
        assert name not in mapping, name
        if value.strip() == ">-":
            folded = []
            while lines and _depth(lines[0]) > depth:
                folded.append(lines.pop(0).strip())
            mapping[name] = " ".join(folded)
        elif value:
            mapping[name] = json.loads(value) if value.startswith(' "') else value.strip()
        else:
            mapping[name] = _read_block(lines, _depth(lines[0]))
    return mapping


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


RULES: list[dict[str, Any]] = [
    rule for group in read_yaml((DEPLOY / "prometheus-alerts.yaml").read_text())["groups"] for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
TARGETS = [(panel["title"], target) for panel in PANELS for target in panel["targets"]]


def series_in(expression: str) -> set[str]:
    """The series of an expression; every other word in it is one of the language."""
    bare = re.sub(r'"[^"]*"', "", expression)
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|by \([^)]*\)", " ", bare)
    return set(re.findall(r"[a-zA-Z_:][\w:]*", bare)) - WORDS


def check(expression: str) -> set[str]:
    """The labels that the result has; fails where the expression names what is not there."""
    known = known_series()
    series = series_in(expression)
    assert series
    assert series <= known.keys(), series - known.keys()
    for opening, closing in ("()", "[]", "{}"):
        assert expression.count(opening) == expression.count(closing)
    for name, selector in re.findall(r"(\w+)\{([^}]*)\}", expression):
        assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", re.sub(r'"[^"]*"', '""', selector))) <= known[name], selector
    for name in re.findall(r"(?:rate|increase)\((\w+)", expression):
        assert name.endswith(("_total", "_bucket", "_sum", "_count")), f"{name} is no counter"
    kept = [set(re.split(r",\s*", labels)) for labels in re.findall(r"by \(([^)]*)\)", expression)]
    for labels in kept:
        assert all(labels <= known[name] for name in series), labels
    return set.union(*kept) - {"le"} if kept else set.intersection(*(known[name] for name in series))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_is_about_what_there_is(rule: dict[str, Any]) -> None:
    labels = check(rule["expr"])
    assert set(rule) - {"for"} == {"alert", "expr", "labels", "annotations"}
    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert set(rule["annotations"]) == {"summary", "description"}
    assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) <= labels
    assert re.fullmatch(r"\d+[mh]", rule.get("for", "1m"))
    assert f"`{rule['alert']}`" in HANDBOOK


@pytest.mark.parametrize(("title", "target"), TARGETS, ids=lambda value: value if isinstance(value, str) else value["refId"])
def test_a_panel_shows_what_there_is(title: str, target: dict[str, Any]) -> None:
    labels = check(target["expr"])
    assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels, title


def test_the_dashboard_shows_every_metric_and_asks_for_labels_that_there_are() -> None:
    shown = {name for _, target in TARGETS for name in series_in(target["expr"])}
    for metric in METRICS:
        assert any(name.startswith(metric.full_name) for name in shown), metric.full_name
    known = known_series()
    variables = {variable["name"]: variable["query"] for variable in DASHBOARD["templating"]["list"]}
    for name in ("instance", "bus"):
        series, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variables[name]["query"]).groups()  # type: ignore[union-attr]
        assert label in known[series]
    used = {name for _, target in TARGETS for name in re.findall(r"\$(\w+)", target["expr"])}
    assert used <= variables.keys() | {"__rate_interval"}
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    assert len({(place["x"], place["y"]) for place in places}) == len(places)
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(places)
    assert all(place["x"] + place["w"] <= 24 for place in places)


def test_a_name_that_is_not_there_is_found() -> None:
    for wrong in (
        "rate(tardis_machine_bus_events_lost_total[5m])",
        'tardis_machine_bus_queue_bytes{route="x"}',
        "sum by (route) (tardis_machine_bus_queue_bytes)",
        "rate(tardis_machine_bus_queue_bytes[5m])",
        "sum(tardis_machine_bus_queue_bytes",
    ):
        with pytest.raises(AssertionError):
            check(wrong)


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's, with their lines joined."""
    text = re.sub(r"\\\n\s*", "", (DEPLOY / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def included_in_sdist() -> set[str]:
    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return {name.lstrip("/") for name in document["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]}


def test_the_container_file_is_tight() -> None:
    found = instructions()
    bases = [rest.split()[0] for word, rest in found if word == "FROM"]
    assert all(re.fullmatch(r"[\w./-]+:\d+\.\d+\.\d+[\w.-]*", base) for base in bases), "an image has a full version"
    assert len(set(bases)) == 1, "what is built on one image is run on the same"
    copied = {path for word, rest in found if word == "COPY" and "--from=" not in rest for path in rest.split()[:-1]}
    assert copied <= included_in_sdist()
    assert all((ROOT / path).exists() for path in copied)
    assert not [rest for word, rest in found if word == "ADD"]
    runs = [rest for word, rest in found if word == "RUN"]
    assert all(re.search(r"==[\d.]+", run) for run in runs if "pip install" in run and "--constraint" not in run)
    assert not [run for run in runs if re.search(r"curl|wget|sudo|chmod 777|--trusted-host|index-url", run)]


def test_the_container_runs_as_nobody_and_holds_no_secret() -> None:
    found = instructions()
    last = [word for word, _ in found]
    assert last.index("USER") > max(place for place, word in enumerate(last) if word == "RUN")
    (user,) = [rest for word, rest in found if word == "USER"]
    assert int(user) >= 10_000, "a number, so that a cluster can see that it is not root"
    secrets = {option.variable for command in COMMANDS.values() for option in _all_options(command.name) if option.secret}
    assert "TM_AUTH_TOKEN" in secrets
    assert not [variable for variable in secrets if variable in (DEPLOY / "Dockerfile").read_text()]
    known = {option.variable for option in _all_options("serve")}
    (variables,) = [re.findall(r"(TM_\w+)=", rest) for word, rest in found if word == "ENV"]
    assert variables
    assert set(variables) <= known
    assert [json.loads(rest)[0] for word, rest in found if word == "ENTRYPOINT"] == ["tardis-machine"]
    assert [rest for word, rest in found if word == "STOPSIGNAL"] == ["SIGTERM"]


def test_the_container_is_given_only_what_it_copies() -> None:
    rules = (DEPLOY / "Dockerfile.dockerignore").read_text().split("\n*\n")[1].split()
    allowed = {rule[1:] for rule in rules if rule.startswith("!")}
    assert allowed == {
        path for word, rest in instructions() if word == "COPY" and "--from" not in rest for path in rest.split()[:-1]
    }


def _all_options(command: str) -> list[Any]:
    catalogue = Catalogue(COMMANDS[command])
    catalogue.load_all()
    return catalogue.options


def test_the_unit_runs_the_server_with_what_it_takes() -> None:
    unit = ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(DEPLOY / "tardis-machine.service")
    assert unit.sections() == ["Unit", "Service", "Install"]
    service = unit["Service"]
    program, command, *flags = service["ExecStart"].split()
    assert Path(program).name == "tardis-machine"
    options = {option.name: option for option in _all_options(command)}
    assert all(flag[2:] in options for flag in flags if flag.startswith("--"))
    variables = [pair.partition("=")[0] for pair in service["Environment"].split()]
    assert set(variables) <= {option.variable for option in options.values()}
    assert service["User"] != "root"
    assert service["NoNewPrivileges"] == "yes"
    assert service["ProtectSystem"] == "strict"
    # Longer than a drain takes, and only the server is told: it ends its workers itself.
    assert int(service["TimeoutStopSec"]) > options["shutdown-timeout"].default
    assert (service["KillSignal"], service["KillMode"]) == ("SIGTERM", "mixed")
    assert (service["Restart"], service["RestartPreventExitStatus"]) == ("on-failure", "2")


def logged_lines() -> Iterator[tuple[str, str]]:
    """The sentences that the program logs, with where; of one that is put together, its longest fixed part."""
    for file in sorted((ROOT / "src" / "tardis_machine").rglob("*.py")):
        source = file.read_text()
        if not re.search(r"_?log\.(info|warning|error|exception|log)\(", source, re.IGNORECASE):
            continue
        for node in ast.walk(ast.parse(source)):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            owner = ast.unparse(node.func.value).lower().split(".")[-1]
            if owner not in ("log", "_log") or node.func.attr not in ("info", "warning", "error", "exception", "log"):
                continue
            first = node.args[1] if node.func.attr == "log" else node.args[0]
            parts = [part.value for part in ast.walk(first) if isinstance(part, ast.Constant) and isinstance(part.value, str)]
            if parts and not isinstance(first, ast.Call):
                parts = [max(parts, key=len)]
            for text in parts:
                yield str(file.relative_to(ROOT)), max(re.split(r"%[\w.]+", text), key=len).strip(" :;")


def test_the_handbook_knows_every_log_line() -> None:
    lines = list(logged_lines())
    assert len(lines) > 30
    unknown = [f"{where}: {text}" for where, text in lines if text not in HANDBOOK]
    assert not unknown, "docs/operations.md says what each log line means"


def test_the_handbook_knows_every_metric() -> None:
    assert not [metric.name for metric in METRICS if f"`{metric.name}`" not in HANDBOOK]
