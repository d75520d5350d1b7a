"""Settings: precedence, spelling, problems, buses, keywords. Two buses are declared here, beside the real ones."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tardis_machine.commands.config import docs_text, report_text
from tardis_machine.errors import SettingsError
from tardis_machine.eventbus.options import PLACEHOLDERS, common_bus_options
from tardis_machine.settings import Option, Settings, from_keywords, hosts, integer, pairs, resolve, switch, text, url
from tardis_machine.settings.buses import BUS_MODULES, bus_options, required_options
from tardis_machine.settings.commands import COMMANDS, all_options
from tardis_machine.settings.option import one_of

DURATION = "a duration, such as 5s, 500ms or 1m (a bare number is seconds)"
HOSTS = "host:port, separated by commas (the port is 9092 if left out)"
DOCS = Path(__file__).parents[3] / "docs" / "configuration.md"


def declare(name: str, required: tuple[str, ...], *options: Option) -> ModuleType:
    module = ModuleType(f"declared_{name}")
    vars(module).update(OPTIONS=options, REQUIRED=required)
    return module


KAFKA = declare(
    "kafka",
    ("kafka-brokers", "kafka-topic"),
    Option(name="kafka-brokers", help="Where the cluster is", group="kafka", parse=hosts(9092)),
    Option(name="kafka-topic", help="Base topic", group="kafka", parse=text(), key="destination"),
    Option(name="kafka-sasl-password", help="Password", group="kafka", parse=text(), secret=True),
    Option(name="kafka-ssl", help="Encrypts", group="kafka", parse=switch, default=False),
    Option(name="kafka-option", help="Anything else", group="kafka", parse=pairs("="), repeated=True),
    *common_bus_options("kafka", destination="topic"),
)
REDIS = declare(
    "redis",
    ("redis-url|redis-host", "redis-stream"),
    Option(name="redis-url", help="Address", group="redis", parse=url("redis")),
    Option(name="redis-host", help="Host", group="redis", parse=text()),
    Option(name="redis-port", help="Port", group="redis", parse=integer(1, 65535), default=6379),
    Option(name="redis-stream", help="Base stream", group="redis", parse=text(), aliases=("redis-stream-name",)),
    *common_bus_options(
        "redis",
        destination="stream",
        key_option=None,
        destination_template="stream-template",
        headers_option="static-fields",
        aliases={"stream-template": ("key-template",), "static-fields": ("static-headers",)},
    ),
)


@pytest.fixture(autouse=True)
def declared_buses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, module in (("kafka", KAFKA), ("redis", REDIS)):
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(BUS_MODULES, name, module.__name__)  # type: ignore[arg-type]


def problems_of(*argv: str, environ: Mapping[str, str] | None = None, command: str = "serve") -> list[str]:
    with pytest.raises(SettingsError) as refusal:
        resolve(argv, environ or {}, command=command)
    return refusal.value.problems


def problems_in(document: str, folder: Path) -> list[str]:
    file = folder / "conf.toml"
    file.write_text(document)
    return [problem.replace(str(file), "conf.toml") for problem in problems_of("--config", str(file))]


def read_toml(document: str, folder: Path, *argv: str, command: str = "serve") -> Settings:
    (folder / "conf.toml").write_text(document)
    return resolve([*argv, "--config", str(folder / "conf.toml")], {}, command=command)


def test_defaults_are_those_of_the_product() -> None:
    found = resolve([], {"XDG_STATE_HOME": "/state"})
    assert (found.host, found.port, found.api_key, found.api_url) == ("127.0.0.1", 8000, None, "https://api.tardis.dev/v1")
    assert found.cache_dir.parts[-2:] == (".cache", "tardis-machine")
    assert found.workers >= 1
    assert (found.log_format, found.log_level, found.debug, found.shutdown_timeout) == ("text", "info", False, 30.0)
    assert (found.spool_dir, found.spool_max_bytes) == (Path("/state/tardis-machine/spool"), 4 * 1024**3)
    assert (found.spool_mode, found.book_changes, found.buses) == ("overflow", "message", ())
    assert found.source("port") == "default"


def test_flags_take_their_value_after_a_space_or_an_equals_sign() -> None:
    found = resolve(["--port", "1", "--host=::", "--debug", "--no-clear-cache", "--cluster-mode=false"], {})
    assert (found.port, found.host, found.debug, found.clear_cache, found.cluster_mode) == (1, "::", True, False, False)
    assert resolve(["--debug", "false", "--clear-cache", "true"], {}).debug is False
    assert resolve(["--port", "1", "--port", "2"], {}).port == 2


def test_port_is_honoured_after_tm_port() -> None:
    assert resolve([], {"PORT": "81"}).port == 81
    assert resolve([], {"PORT": "81"}).source("port") == "PORT"
    assert resolve([], {"PORT": "81", "TM_PORT": "82"}).port == 82
    assert problems_of(environ={"PORT": "x"}) == ["PORT: expected a whole number from 0 to 65534, got 'x'"]


def test_an_empty_variable_is_not_given() -> None:
    assert resolve([], {"TM_PORT": "", "PORT": "", "TM_NONSENSE": ""}).port == 8000


def test_a_file_may_be_flat_or_in_tables(tmp_path: Path) -> None:
    flat = read_toml('port = 1\nkafka-brokers = ["a", "b:1"]\nkafka-topic = "t"\nkafka-option = {acks = 1}', tmp_path)
    tables = read_toml(
        '[server]\nport = 1\n[kafka]\nbrokers = "a,b:1"\ntopic = "t"\n[kafka.option]\nacks = "1"',
        tmp_path,
    )
    assert dict(flat) == dict(tables)
    assert flat.kafka_brokers == ("a:9092", "b:1")
    assert flat.kafka_option == {"acks": "1"}
    assert tables.source("kafka_topic") == f"kafka.topic in {tmp_path / 'conf.toml'}"


def test_a_file_may_hold_what_other_commands_take(tmp_path: Path) -> None:
    document = 'lake = "x"\nquery = 1\n[demo]\nspan = 3\n'
    assert problems_in(document, tmp_path) == ["query in conf.toml is not a setting"]
    found = read_toml(
        '[lake]\nmaster = "local[1]"\ntrigger = "1s"\n[kafka]\nbroker = 1\n', tmp_path, "select 1", command="lake sql"
    )
    assert found.master == "local[1]"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_command_line_beats_environment_beats_file_beats_default(data: st.DataObject, tmp_path: Path) -> None:
    values = {
        "port": st.integers(0, 65534),
        "log-level": st.sampled_from(["debug", "info", "warning", "error"]),
        "debug": st.booleans(),
        "kafka-brokers": st.just("h:1"),
        "kafka-topic": st.text("abc", min_size=1),
        "kafka-static-headers": st.dictionaries(st.text("abc,\"' =", min_size=1), st.text("abc,\"':")),
    }
    argv, environ, lines = [], {}, []
    expected: dict[str, tuple[Any, str]] = {}
    file = tmp_path / "conf.toml"
    for name, strategy in values.items():
        option = next(option for option in (*COMMANDS["serve"].options, *KAFKA.OPTIONS) if option.name == name)
        needed = name in ("kafka-brokers", "kafka-topic")
        sources = data.draw(st.sets(st.sampled_from(["argv", "environ", "file"]), min_size=1 if needed else 0), label=name)
        for source in ("file", "environ", "argv"):
            if source not in sources:
                continue
            written = option.text_of(data.draw(strategy, label=f"{name} in {source}"))
            if source == "file":
                lines.append(f"{name} = {json.dumps(written)}")
                spelling = f"{name} in {file}"
            elif source == "environ":
                environ[option.variable] = written
                spelling = option.variable
            else:
                argv.append(f"--{name}={written}")
                spelling = f"--{name}"
            if source != "environ" or written:
                expected[option.attribute] = (option.read(written), spelling)
        if not sources:
            expected[option.attribute] = (option.default, "default")
    file.write_text("\n".join(lines))
    found = resolve([*argv, "--config", str(file)], environ)
    assert {name: (found[name], found.source(name)) for name in expected} == expected
    assert found.buses == ("kafka",)


def test_the_file_may_be_named_by_a_variable(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("port = 7")
    assert resolve([], {"TM_CONFIG": str(tmp_path / "a.toml")}).port == 7


def test_a_file_that_can_not_be_used_is_a_problem(tmp_path: Path) -> None:
    missing = tmp_path / "no.toml"
    assert problems_of("--config", str(missing)) == [f"--config: can't read {str(missing)!r}: No such file or directory"]
    assert problems_in("port = ", tmp_path) == ["--config: 'conf.toml' is not valid TOML: Invalid value (at end of document)"]
    assert problems_in('config = "x"', tmp_path) == ["config in conf.toml: a configuration file can't name another one"]
    assert problems_in("port = 1\n[server]\nport = 2", tmp_path) == [
        "server.port in conf.toml and port in conf.toml are the same setting, given twice"
    ]


def test_all_problems_come_together_each_as_the_user_wrote_it(tmp_path: Path) -> None:
    file = tmp_path / "conf.toml"
    file.write_text('workers = -1\n[kafka]\nbroker = "a"\n[server]\nhosst = "x"\ndebug = true\nshutdown-timeout = [1]\n')
    found = problems_of("--port", "http", "--log-levl", "info", "--spool-mode=never", "--config", str(file),
                        environ={"TM_SPOOL_MAX_BYTES": "4 potatoes", "TM_KAFKA_TOPICS": "t"})  # fmt: skip
    assert [problem.replace(str(file), "conf.toml") for problem in found] == [
        "--log-levl is not an option of 'serve': did you mean --log-level?",
        "TM_KAFKA_TOPICS is not a setting: did you mean TM_KAFKA_TOPIC?",
        "kafka.broker in conf.toml is not a setting: did you mean kafka.brokers in conf.toml?",
        "server.hosst in conf.toml is not a setting: did you mean server.host in conf.toml?",
        "server.debug in conf.toml is not a setting: did you mean general.debug in conf.toml?",
        "--port: expected a whole number from 0 to 65534, got 'http'",
        "workers in conf.toml: expected a whole number from 0 to 1024, got '-1'",
        f"server.shutdown-timeout in conf.toml: expected {DURATION}, got a list",
        "TM_SPOOL_MAX_BYTES: expected a size above 0, such as 67108864, 64MiB or 4GiB, got '4 potatoes'",
        "--spool-mode: expected overflow or always, got 'never'",
    ]


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (["--port"], "--port needs a value: a whole number from 0 to 65534"),
        (["--port", "--debug"], "--port needs a value: a whole number from 0 to 65534"),
        (["--port", "-1"], "--port: expected a whole number from 0 to 65534, got '-1'"),
        (["--no-debug=true"], "--no-debug takes no value"),
        (["--debug=perhaps"], "--debug: expected true or false, got 'perhaps'"),
        (["--no-port"], "--no-port is not an option of 'serve': did you mean --port?"),
        (["-p", "1"], "-p is not an option of 'serve'"),
        (["--apiKey", "x"], "--apiKey is not an option of 'serve': did you mean --api-key?"),
        (["--trigger", "1s"], "--trigger is not an option of 'serve'; it belongs to 'lake ingest'"),
        (["extra"], "'serve' takes no argument 'extra'"),
        (["--debug", "lake", "sql"], "the command 'lake' must come before all options"),
        (["--", "--port"], "'serve' takes no argument '--port'"),
    ],
)
def test_what_is_wrong_on_the_command_line(argv: list[str], problem: str) -> None:
    assert problems_of(*argv)[0] == problem


def test_arguments_without_a_flag() -> None:
    assert resolve(["select\n1", "--format", "csv"], {}, command="lake sql").query == "select\n1"
    assert resolve(["--", "--select"], {}, command="lake sql").query == "--select"
    assert resolve([], {"TM_QUERY": ""}, command="exchanges").format == "table"
    assert problems_of(command="lake sql") == ["QUERY is required: a query"]
    assert problems_of("a", "b", command="lake sql") == ["'lake sql' takes no argument 'b'"]
    assert problems_of("--query", "a", command="lake sql")[0].startswith("--query is not an option of 'lake sql'")
    takers = one_of(tuple(f"'{command.name}'" for command in COMMANDS.values() if command.takes_buses))
    assert problems_of("--kafka-topic", "t", "q", command="lake sql") == [
        f"--kafka-topic is not an option of 'lake sql'; it belongs to {takers}"
    ]


def test_a_flag_may_stand_for_a_value_of_its_own() -> None:
    for argv, value in (
        (["--dead-letter"], True),
        (["--dead-letter", "--raw"], True),
        (["--dead-letter", "folder"], Path("folder")),
        (["--dead-letter=false"], False),
        ([], None),
    ):
        assert resolve(argv, {}, command="replay").dead_letter == value
    assert resolve([], {"TM_DEAD_LETTER": "true"}, command="replay").dead_letter is True


SECRET = "hunter2-very-secret"


@pytest.mark.parametrize(
    ("argv", "environ"),
    [
        (["--api-kye", SECRET], {}),
        ([f"--api-kye={SECRET}"], {}),
        ([f"--api-key=\n{SECRET}"], {}),
        ([], {"TM_API_KYE": SECRET}),
        ([], {"TM_API_KEY": f"{SECRET}\x00"}),
        (["--redis-url", f"http://user:{SECRET}@host"], {}),
        (["--kafka-option", f"sasl.password={SECRET}"], {}),
        ([f"--kafka-static-headers=eventId:1,token:{SECRET}"], {}),
    ],
)
def test_a_secret_is_in_no_problem(argv: list[str], environ: dict[str, str]) -> None:
    found = "\n".join(problems_of(*argv, environ=environ))
    assert found
    assert SECRET not in found


def test_a_secret_with_a_bad_value_says_what_it_takes() -> None:
    assert problems_of("--api-key=") == ["--api-key: expected a non-empty line of text (the value is not shown)"]


def test_secrets_are_shown_nowhere_and_listed_for_logs() -> None:
    argv = ["--api-key", SECRET, "--redis-url", f"redis://me:{SECRET}2@host", "--redis-stream", "s"]
    found = resolve(argv, {}, command="config")
    for shown in (repr(found), report_text(found)):
        assert SECRET not in shown
        assert "redis://me:***@host" in shown
    assert set(found.secrets()) == {SECRET, f"{SECRET}2"}


def test_the_report_says_where_each_value_came_from(tmp_path: Path) -> None:
    (tmp_path / "conf.toml").write_text("workers = 3")
    environ = {"TM_FILE_DIR": "out", "TM_CONFIG": str(tmp_path / "conf.toml")}
    lines = [line.split() for line in report_text(resolve(["--port", "5"], environ, command="config")).splitlines()]
    assert ["port", "5", "--port"] in lines
    assert ["workers", "3", "workers", "in", str(tmp_path / "conf.toml")] in lines
    assert ["file-dir", "out", "TM_FILE_DIR"] in lines
    assert ["spool-max-bytes", "4GiB", "default"] in lines
    assert ["api-key", "-", "default"] in lines
    assert lines[-1] == ["Buses", "that", "are", "on:", "file"]


def test_a_bus_is_on_when_its_address_and_destination_are_given() -> None:
    argv = ["--kafka-brokers", "a", "--kafka-topic", "t", "--kafka-topic-routing", "bookChange:books,trade:'t,1'"]
    argv += ["--kafka-option", "a=1", "--kafka-option", "b=2"]
    found = resolve(argv, {"TM_KAFKA_INCLUDE_PAYLOADS": "tradeBar,trade"})
    assert found.buses == ("kafka",)
    kafka = found.for_bus("kafka")
    assert kafka["brokers"] == ("a:9092",)
    assert kafka["destination"] == "t"
    assert kafka["routing"] == {"book_change": "books", "trade": "t,1"}
    assert kafka["include_payloads"] == ("trade_bar", "trade")
    assert kafka["option"] == {"a": "1", "b": "2"}
    assert kafka["key_template"] == "{{exchange}}|{{symbol}}|{{payloadCase}}"
    assert (kafka["queue_max_bytes"], kafka["overflow"], kafka["block_timeout"]) == (64 * 1024**2, "spool", 5.0)
    assert kafka["oversize"] == "dead-letter"
    with pytest.raises(SettingsError, match="the redis bus is off; it needs --redis-url or --redis-host and --redis-stream"):
        found.for_bus("redis")


def test_common_options_have_the_same_names_for_every_bus() -> None:
    argv = ["--redis-host", "h", "--redis-stream-name", "s", "--redis-key-template", "{{symbol}}"]
    argv += ["--redis-static-headers", "a:b"]
    redis = resolve(argv, {}).for_bus("redis")
    assert (redis["stream"], redis["destination_template"], redis["static_headers"]) == ("s", "{{symbol}}", {"a": "b"})
    options = common_bus_options("kafka", destination="topic")
    kafka = {option.key or option.name.removeprefix("kafka-").replace("-", "_") for option in options}
    assert kafka - redis.keys() == {"key_template"}


@pytest.mark.parametrize(
    ("argv", "environ", "problem"),
    [
        (["--kafka-brokers", "a"], {},
         "--kafka-topic is required when --kafka-brokers is given"),
        ([], {"TM_KAFKA_TOPIC": "t"},
         "TM_KAFKA_BROKERS is required when TM_KAFKA_TOPIC is given"),
        (["--kafka-ssl"], {},
         "--kafka-brokers and --kafka-topic are required when --kafka-ssl is given"),
        (["--redis-stream", "s"], {},
         "--redis-url or --redis-host is required when --redis-stream is given"),
    ],
)  # fmt: skip
def test_half_a_bus_is_a_problem(argv: list[str], environ: dict[str, str], problem: str) -> None:
    assert problems_of(*argv, environ=environ) == [problem]


@pytest.mark.parametrize(
    ("flag", "value", "problem"),
    [
        ("--kafka-topic-routing", "trad:x", "'trad' is not a payload case; expected trade, book_change, "),
        ("--kafka-topic-routing", "trade:", "a payload case has no destination"),
        ("--kafka-include-payloads", "trade,quotes", "'quotes' is not a payload case; expected trade, "),
        ("--kafka-key-template", "{{foo}}", "{{foo}} is not a placeholder; expected {{exchange}}, "),
        (
            "--kafka-static-headers",
            "payloadcase:x",
            "'payloadcase' can't be set: ",
        ),
        ("--kafka-overflow", "explode", "expected spool, block or drop, got 'explode'"),
    ],
)
def test_common_options_are_checked_at_start(flag: str, value: str, problem: str) -> None:
    (found,) = problems_of("--kafka-brokers", "a", "--kafka-topic", "t", flag, value)
    assert found.startswith(f"{flag}: {problem}")


def test_an_option_that_is_misspelt_is_not_missing_too() -> None:
    assert problems_of("--kafka-broker", "a", "--kafka-topic", "t") == [
        "--kafka-broker is not an option of 'serve': did you mean --kafka-brokers?"
    ]


def test_keywords_say_the_same_as_flags() -> None:
    flags = [
        "--api-key",
        "k",
        "--cache-dir",
        "/c",
        "--kafka-brokers",
        "a,b",
        "--kafka-topic",
        "t",
        "--kafka-topic-routing",
        "trade:x",
    ]
    group = {"brokers": ["a", "b"], "topic": "t", "topic_routing": {"trade": "x"}, "ssl": None}
    same = [
        from_keywords({"api_key": "k", "cache_dir": Path("/c"), "kafka": group, "redis": None}, {}),
        from_keywords({"api_key": "k", "cache_dir": "/c", "event_bus": {"provider": "kafka", **group}}, {}),
        from_keywords({"api_key": "k", "cache_dir": "/c", "event_bus": [{"provider": "kafka", **group}]}, {}),
        from_keywords(
            {
                "apiKey": "k",
                "cacheDir": "/c",
                "eventBus": {"provider": "kafka", "brokers": "a,b", "topic": "t", "topicRouting": {"trade": "x"}},
            },
            {},
        ),
    ]
    for found in same:
        assert dict(found) == dict(resolve(flags, {}))
        assert found.buses == ("kafka",)


PASSWORDS: list[tuple[str, dict[str, Any], str, str]] = [
    ("nats", {"servers": "a", "subject": "s", "user": "u"}, "pass", "password"),
    ("kinesis", {"stream": "s", "secret-access-key": "x"}, "access-key", "access_key_id"),
    ("kinesis", {"stream": "s", "access-key-id": "x"}, "secret-key", "secret_access_key"),
    ("sqs", {"queue-url": "http://a/1/q", "secret-access-key": "x"}, "access-key", "access_key_id"),
    ("sqs", {"queue-url": "http://a/1/q", "access-key-id": "x"}, "secret-key", "secret_access_key"),
]


@pytest.mark.parametrize(("bus", "needed", "typed", "name"), PASSWORDS)
def test_names_that_people_type_are_options_everywhere_and_secret(
    bus: str, needed: dict[str, Any], typed: str, name: str
) -> None:
    flags = [word for key, value in needed.items() for word in (f"--{bus}-{key}", value)]
    variable = f"TM_{bus}_{typed}".upper().replace("-", "_")
    camel = typed.replace("-k", "K")
    for found in (
        resolve([*flags, f"--{bus}-{typed}", "hush-hush"], {}),
        resolve(flags, {variable: "hush-hush"}),
        from_keywords({bus: {**needed, typed.replace("-", "_"): "hush-hush"}}, {}),
        from_keywords({"eventBus": {"provider": bus, **needed, camel: "hush-hush"}}, {}),
    ):
        assert found.for_bus(bus)[name] == "hush-hush"
        assert "hush-hush" in found.secrets()
        assert "hush-hush" not in repr(found)


@pytest.mark.parametrize(
    ("typed", "means"),
    [("scram-sha-256", "scram-256"), ("SCRAM-SHA-512", "scram-512"), ("PLAIN", "plain"), ("scram-256", "scram-256")],
)
def test_mechanisms_are_known_by_their_own_names(monkeypatch: pytest.MonkeyPatch, typed: str, means: str) -> None:
    monkeypatch.undo()  # the options of the bus itself
    flags = ["--kafka-brokers", "a", "--kafka-topic", "t", "--kafka-sasl-mechanism", typed]
    assert resolve(flags, {}).for_bus("kafka")["sasl_mechanism"] == means
    settings = resolve(flags[:4], {"TM_KAFKA_SASL_MECHANISM": typed})
    assert settings.for_bus("kafka")["sasl_mechanism"] == means


def test_keywords_do_not_read_the_environment() -> None:
    assert from_keywords({}, {"TM_PORT": "1", "PORT": "2", "TM_NONSENSE": "x"}).port == 8000


@pytest.mark.parametrize(
    ("keywords", "problems"),
    [
        ({"prot": 1}, ["prot is not a setting: did you mean port?"]),
        ({"port": True}, ["port: expected a whole number from 0 to 65534, got true"]),
        ({"port": 8000.5}, ["port: expected a whole number from 0 to 65534, got '8000.5'"]),
        ({"host": object}, ["host: expected a non-empty line of text, got a type"]),
        ({"kafak": {}}, ["kafak is not a setting: did you mean kafka?"]),
        ({"kafka": "a"}, ["kafka: expected a mapping of the options of kafka, got a str"]),
        ({"kafka": {"brokers": {"a": 1}, "topic": ["t"]}},
         [f"kafka.brokers: expected {HOSTS}, got a mapping",
          "kafka.topic: expected a non-empty line of text, got a list"]),
        ({"kafka": {"brokers": [["a"]], "topic": "t"}},
         [f"kafka.brokers: expected {HOSTS}, got a list inside another value"]),
        ({"kafka": {"brokers": "a"}}, ["kafka.topic is required when kafka.brokers is given"]),
        ({"kafka": {"broker": "a", "topic": "t"}}, ["kafka.broker is not a setting: did you mean kafka.brokers?"]),
        ({"event_bus": {"topic": "t"}}, [f"event_bus.provider: expected {one_of(tuple(BUS_MODULES))}, got nothing"]),
        ({"event_bus": [{"provider": "kafak"}]}, [f"event_bus[0].provider: expected {one_of(tuple(BUS_MODULES))}, got 'kafak'"]),
        ({"event_bus": "kafka"}, ["event_bus: expected a mapping with provider and the options of that bus, got a str"]),
        ({"event_bus": {"provider": "kafka", "topic": "t"}},
         ["event_bus.brokers is required when event_bus.topic is given"]),
        ({"kafka": {"brokers": "a", "topic": "t"}, "event_bus": {"provider": "kafka", "topic": "u"}},
         ["event_bus.topic and kafka.topic are the same setting, given twice"]),
        ({"api_key": "a\nb"}, ["api_key: expected a non-empty line of text (the value is not shown)"]),
        ({"config": "x"}, ["config: settings given in Python can't come from a file as well"]),
    ],
)  # fmt: skip
def test_problems_name_the_keyword(keywords: dict[str, Any], problems: list[str]) -> None:
    with pytest.raises(SettingsError) as refusal:
        from_keywords(keywords, {})
    assert refusal.value.problems == problems


def test_settings_are_a_mapping_with_attributes() -> None:
    found = resolve(["--from", "files"], {}, command="lake ingest")
    assert found.from_ == found["from_"] == "files"
    assert len(found) == len(list(found)) == len(found.options)
    with pytest.raises(AttributeError, match="no setting 'nonsense'"):
        _ = found.nonsense


def test_a_bus_is_imported_only_when_it_is_named() -> None:
    program = (
        "import sys; from tardis_machine.settings import resolve; resolve(['--port', '1'], {'TM_DEBUG': '1'}); "
        "ours = {name for name in sys.modules if name.startswith('tardis_machine')}; "
        "assert not any('eventbus' in name for name in ours), ours; "
        "resolve(['--file-dir', 'x'], {}); assert 'tardis_machine.eventbus.buses.file' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("name", ["", "Port", "two words", "a--b", "-a", "under_score"])
def test_an_option_with_another_name_is_not_declared(name: str) -> None:
    with pytest.raises(ValueError, match="words in lower case joined by hyphens"):
        Option(name=name, help="Help", group="server")


def test_every_declaration_holds_together() -> None:
    assert PLACEHOLDERS
    for command in COMMANDS.values():
        names = [name for option in command.options for name in option.names]
        assert len(names) == len(set(names)), command.name
    for option in [*all_options(), *(option for bus in BUS_MODULES for option in bus_options(bus))]:
        assert not option.help.endswith(".")
        assert option.group == option.group.lower()
        assert not (option.secret and option.default)
        default = option.resolve_default({})
        if default is not None:
            assert option.read(option.text_of(default)) == default, option.name
    for bus in BUS_MODULES:
        names = [name for option in bus_options(bus) for name in option.names]
        assert len(names) == len(set(names))
        assert all(name.startswith(f"{bus}-") for name in names)
        assert required_options(bus)


def test_the_docs_are_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert DOCS.read_text(encoding="utf-8") == docs_text(), "run: tardis-machine config --docs > docs/configuration.md"
