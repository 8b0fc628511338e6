"""Suites: read once, refused with everything that is wrong, and frozen so that they find their files from anywhere."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalctl import template
from shared.config import Suite
from shared.errors import SuiteError
from shared.suite import dataset_path, freeze, parse_suite, read_suite
from shared.suite_checks import SECRETS_REMEDY
from shared.tasks import read_tasks

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

MODEL = '[[models]]\nabbr = "m"\ntype = "rule"\n'
DATASET = '[[datasets]]\nabbr = "d"\npath = "d.jsonl"\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "d.jsonl").write_text('{"task_id":"t","prompt":"p","targets":["1"]}\n')
    (tmp_path / "rows.csv").write_text("q,a\nx,1\n")
    return tmp_path


def load(path: Path, env: dict[str, str] | None = None, *, check_files: bool = True) -> Suite:
    return parse_suite(read_suite(path), str(path), path.absolute().parent, env, check_files=check_files)


def refused(folder: Path, text: str | bytes, env: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(SuiteError) as caught:
        parse_suite(text, "suite.toml", folder, env)
    assert caught.value.exit_code == 2
    return [str(problem) for problem in caught.value.problems]


def model(folder: Path, lines: str, env: dict[str, str] | None = None) -> list[str]:
    """What is wrong with a suite of one openai model with these lines."""
    return refused(folder, f'[[models]]\nabbr = "m"\n{lines}\n{DATASET}', env)


def dataset(folder: Path, lines: str) -> list[str]:
    """What is wrong with a suite of one dataset with these lines."""
    return refused(folder, f'{MODEL}[[datasets]]\nabbr = "d"\n{lines}\n')


def test_a_suite_is_read_and_finds_its_files(folder: Path) -> None:
    """Relative paths start from the suite's folder, wherever the process stands."""
    path = folder / "suite.toml"
    path.write_text(MODEL + DATASET + "limit = 3\n[infer]\nmax_workers = 7\n[eval]\nwatch_interval = 1\n")
    suite = load(path)
    assert (suite.models[0].abbr, suite.datasets[0].limit, suite.infer.max_workers) == ("m", 3, 7)
    assert suite.eval.watch_interval == 1.0
    assert suite.base_dir == str(folder)
    assert dataset_path(suite, suite.datasets[0]) == folder / "d.jsonl"


def test_everything_that_is_wrong_is_told_at_once(folder: Path) -> None:
    """Structure, names, addresses, secrets, templates, vocabularies: one round of mending, sorted by section."""
    text = """
        [modls]
        [[models]]
        abbr = "a"
        max_worker = 3
        max_workers = "16"
        base_url = "ftp://host/v1"
        [[models]]
        abbr = "A"
        model = 3.10
        api_key_env = "sk-secret-1234"
        generation = { temperature = "1e-5", top_p = 2 }
        [[datasets]]
        metric = "exact_mach"
        prompt = "{{ q"
        [infer]
        poll_interval = 0
        max_error_rate = nan
    """
    assert refused(folder, text) == [
        "models[0].max_worker: unknown key; did you mean max_workers?",
        'models[0].max_workers: expected an integer >= 1, got "16"',
        "models[0].base_url: expected an address that begins with http:// or https://",
        "models[1].model: expected a string, got 3.1; quote it",
        'models[1].generation.temperature: expected a number, got "1e-5"',
        'models[1].abbr: "A" and "a" (models[0]) would be the same file where case is ignored: rename one',
        "models[1].generation.top_p: expected a number from 0 to 1, got 2",
        'models[1].base_url: is required for type "openai": the address up to and including /v1',
        "models[1].api_key_env: expected the name of an environment variable such as OPENAI_API_KEY, not a key: "
        "put the key into a variable and write that variable's name, in capitals",
        "datasets[0].abbr: is required",
        "datasets[0].path: is required",
        "datasets[0].fields.target: is required for plain rows: the field that holds the right answer",
        "datasets[0].prompt: isn't a valid template: line 1: unexpected end of template, "
        "expected 'end of print statement'.",
        'datasets[0].metric: unknown "exact_mach"; did you mean exact_match?',
        "infer.poll_interval: expected a number > 0, got 0",
        "infer.max_error_rate: expected a number from 0 to 1, got nan",
        "modls: unknown key; did you mean models?",
    ]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('generation.temperature = "1e-5"', 'models[0].generation.temperature: expected a number, got "1e-5"'),
        ('attempt_timeout = "1e3"', 'models[0].attempt_timeout: expected a number > 0, got "1e3"'),
        ("model = 3.10", "models[0].model: expected a string, got 3.1; quote it"),
        ("model = false", "models[0].model: expected a string, got false; quote it"),
        ("max_workers = 1e1", "models[0].max_workers: expected an integer >= 1, got 10.0"),
        ("connect_timeout = inf", "models[0].connect_timeout: expected a number > 0, got inf"),
        ("extra_body.x = nan", "models[0].extra_body.x: expected a finite number, got nan"),
        ("version = 2026-11-30", "models[0].version: expected a string, got the date or time 2026-11-30; quote it"),
    ],
)
def test_values_of_another_type_are_refused_not_coerced(folder: Path, line: str, problem: str) -> None:
    """yaml-1e5-string: a number in quotes is no number, a version without quotes is no string."""
    assert model(folder, f'base_url = "http://h/v1"\n{line}') == [problem]


def test_numbers_with_exponents_are_numbers(folder: Path) -> None:
    """yaml-1e5-string: in TOML 1e-5 is a number, and stays one."""
    suite = parse_suite(MODEL + "generation.temperature = 1e-5\n" + DATASET, "s", folder)
    assert suite.models[0].generation.temperature == 0.00001


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a = [1\n\nb = 3", "suite.toml:3: not valid TOML: Unclosed array at column 1"),
        ("\n\nx =", "suite.toml:3: not valid TOML: Invalid value at the end of the file"),
        ("a = 1\na = 2\n", "suite.toml:2: not valid TOML: Cannot overwrite a value at column 6"),
        (
            "retry = 010",
            "suite.toml:1: not valid TOML: Expected newline or end of document after a statement at column 10",
        ),
        (b'a = 1\nb = "caf\xe9"', "suite.toml:2: not UTF-8: byte 0xE9: save the file as UTF-8"),
        ("a = " + "[" * 5000, "suite.toml: not usable TOML: nested too deeply"),
        ("a." * 5000 + "a = 1", "suite.toml: not usable TOML: nested too deeply"),
    ],
)
def test_bad_toml_names_its_line(folder: Path, text: str | bytes, problem: str) -> None:
    """What isn't TOML is told with file and line."""
    assert refused(folder, text) == [problem]


def test_a_file_that_cant_be_read_is_a_suite_error(tmp_path: Path) -> None:
    """Not a traceback."""
    with pytest.raises(SuiteError, match=r"none\.toml: can't be read: No such file or directory$"):
        read_suite(tmp_path / "none.toml")


def test_models_and_datasets_are_needed(folder: Path) -> None:
    """An empty suite has nothing to run."""
    assert refused(folder, "") == ["models: is required", "datasets: is required"]
    assert refused(folder, "models = []\ndatasets = []") == [
        "models: expected an array of tables of at least 1 item, got 0 items",
        "datasets: expected an array of tables of at least 1 item, got 0 items",
    ]
    assert refused(folder, "models = 1\ndatasets = [2]") == [
        "models: expected an array of tables of at least 1 item, got 1",
        "datasets[0]: expected a table, got 2",
    ]


def test_names_must_differ_also_as_files(folder: Path) -> None:
    """#8: equal names, and names that differ by case alone, would share files."""
    models = "".join(f'[[models]]\nabbr = "{abbr}"\ntype = "rule"\n' for abbr in ("m", "org/m:free", "m", "M"))
    assert refused(folder, models + DATASET + DATASET) == [
        'models[2].abbr: "m" is already the abbr of models[0]: each needs its own',
        'models[3].abbr: "M" and "m" (models[0]) would be the same file where case is ignored: rename one',
        'datasets[1].abbr: "d" is already the abbr of datasets[0]: each needs its own',
    ]


@pytest.mark.parametrize("name", ["org/m:free", "org__m:free", "../../etc/x", ".", "..", "tmp_x", "nul", "模型"])
def test_awkward_names_are_fine(folder: Path, name: str) -> None:
    """model-name-special-chars: what the file name rule can carry is allowed."""
    assert parse_suite(MODEL.replace('"m"', f'"{name}"') + DATASET, "s", folder).models[0].abbr == name


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", 'models[0].abbr: expected a string of 1 to 200 characters, got ""'),
        ("m\\nx", r'models[0].abbr: "m\nx" holds a control character: remove it'),
        ("é" * 30, "models[0].abbr: the name needs 180 bytes as a file name, 150 are allowed: shorten it"),
    ],
)
def test_names_that_no_file_should_have_are_refused(folder: Path, name: str, problem: str) -> None:
    """model-name-special-chars: empty, with control characters, too long."""
    assert refused(folder, MODEL.replace('"m"', f'"{name}"') + DATASET) == [problem]


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("", 'is required for type "openai": the address up to and including /v1'),
        ("host:8000/v1", "expected an address that begins with http:// or https://"),
        ("localhost", "expected an address that begins with http:// or https://"),
        ("ftp://host/v1", "expected an address that begins with http:// or https://"),
        ("http:///v1", "expected an address that begins with http:// or https://"),
        ("http://host:99999/v1", "isn't a valid address: Port out of range 0-65535"),
        ("http://[::1/v1", "isn't a valid address: Invalid IPv6 URL"),
        (
            "https://user:secret@host/v1",
            "holds a user name or password: secrets belong in the environment: use api_key_env or headers",
        ),
        ("https://host/v1?key=secret", "expected the address up to and including /v1, without ? and #"),
        ("https://ho st/v1", "holds white space or a control character: remove it"),
        ("https://h:0/v1", "names no usable port"),
        (
            "https://hé/v1",
            "holds a character that no address may hold: write it percent-encoded, in a host's name as xn--",
        ),
        ("https://user:se/cret@host/v1", "isn't a valid address"),
        (
            "https://host/v1/chat/completions",
            "expected the address up to and including /v1: leave /chat/completions out",
        ),
    ],
)
def test_addresses_are_checked_and_never_quoted(folder: Path, url: str, problem: str) -> None:
    """A wrong address is refused before the run; what may be secret in it stays out of the message."""
    assert model(folder, f'base_url = "{url}"') == [f"models[0].base_url: {problem}"]


def test_other_types_need_no_address(folder: Path) -> None:
    """A local model must not have one, an adapter of the user's may; passwords stand in none."""
    assert refused(folder, '[[models]]\nabbr = "m"\ntype = "local"\nbase_url = "http://h/v1"\n' + DATASET) == [
        "models[0].base_url: a local model has none: inferd starts the server itself; remove it"
    ]
    own = '[[models]]\nabbr = "m"\ntype = "mine:Adapter"\nbase_url = "grpc://{}h"\n' + DATASET
    assert parse_suite(own.format(""), "s", folder).models[0].base_url == "grpc://h"
    assert refused(folder, own.format("u:p@")) == [
        "models[0].base_url: holds a user name or password: secrets belong in the environment: "
        "use api_key_env or headers"
    ]


URL = 'base_url = "http://h/v1"\n'


@pytest.mark.parametrize(
    "key", ["sk-abc123", "sk_live_abc", "AIzaSyA1234567890abcdefghijk", "hf_abcDEFghiJKLmnoPQRstu", "a b", "1KEY"]
)
def test_a_key_in_place_of_its_variable_is_refused_and_not_repeated(folder: Path, key: str) -> None:
    """Who pastes the key where its variable belongs must not find it in logs as well."""
    (text,) = model(folder, f'{URL}api_key_env = "{key}"', {})
    assert text.startswith("models[0].api_key_env: expected the name of an environment variable such as OPENAI_API_KEY")
    assert key not in text


def test_variables_are_looked_up_only_when_asked(folder: Path) -> None:
    """Unset and empty variables are found before the run; a reader of the suite doesn't need them."""
    lines = URL + 'api_key_env = "KEY"\nheaders = { X-Team = "${TEAM}", Authorization = "Token ${TOKEN}" }\n'
    assert model(folder, lines, {"TEAM": ""}) == [
        "models[0].api_key_env: the environment variable KEY is not set: export KEY=...",
        "models[0].headers.X-Team: the environment variable TEAM is empty: export TEAM=...",
        "models[0].headers.Authorization: the environment variable TOKEN is not set: export TOKEN=...",
    ]
    text = f'[[models]]\nabbr = "m"\n{lines}\n{DATASET}'
    env = {"KEY": "k", "TEAM": "t", "TOKEN": "x"}
    assert parse_suite(text, "s", folder, env) == parse_suite(text, "s", folder)


def test_certificate_files_must_be_there_unless_the_reader_needs_none(folder: Path) -> None:
    """Checked like datasets' files; whoever reads the suite gets them as absolute paths."""
    for name in ("ca.pem", "c.pem", "c.key"):
        (folder / name).touch()
    (folder / "sub").mkdir()
    lines = URL + 'ca_file = "ca.pem"\nclient_cert = "./sub/../c.pem"\n'
    text = f'[[models]]\nabbr = "m"\n{lines}client_key = "{folder}/c.key"\n{DATASET}'
    model_ = parse_suite(text, "s", folder).models[0]
    files = [str(folder / name) for name in ("ca.pem", "c.pem", "c.key")]
    assert [model_.ca_file, model_.client_cert, model_.client_key] == files
    assert parse_suite(freeze(text, folder), "s", Path("/elsewhere")).models == (model_,)
    assert model(folder, URL + 'ca_file = "none.pem"\nclient_cert = "sub"\nclient_key = "-----BEGIN\\nKEY"') == [
        f"models[0].ca_file: no such file: {folder}/none.pem",
        f"models[0].client_cert: is no file: {folder}/sub",
        "models[0].client_key: expected the name of a file in PEM",
    ]
    for name in ("ca.pem", "c.pem", "c.key"):
        (folder / name).unlink()
    assert parse_suite(text, "s", folder, check_files=False).models == (model_,)


@pytest.mark.parametrize(
    ("lines", "problems"),
    [
        ('client_key = "rows.csv"', ["client_key: is of no use without client_cert"]),
        ('client_key_password_env = "SET"', ["client_key_password_env: is of no use without client_cert"]),
        (
            'client_cert = "rows.csv"\nclient_key_password_env = "UNSET"',
            ["client_key_password_env: the environment variable UNSET is not set: export UNSET=..."],
        ),
        (
            'client_cert = "rows.csv"\nclient_key_password_env = "my secret"',
            [
                "client_key_password_env: expected the name of an environment variable such as KEY_PASSWORD, "
                "not a password: put the password into a variable and write that variable's name, in capitals"
            ],
        ),
        ("low_speed_time = 10", ["low_speed_time: is of no use without low_speed_limit"]),
        ("low_speed_limit = 0\nlow_speed_time = 10", ["low_speed_time: is of no use without low_speed_limit"]),
        ("low_speed_limit = -1", ["low_speed_limit: expected an integer >= 0, got -1"]),
        (
            'low_speed_limit = 1\nlow_speed_time = 0.5\nhttp2 = "no"',
            ["low_speed_time: expected a number >= 1, got 0.5", 'http2: expected true or false, got "no"'],
        ),
    ],
)
def test_how_a_model_connects_is_checked(folder: Path, lines: str, problems: list[str]) -> None:
    """What needs something else that isn't there, and secrets where a variable's name belongs."""
    assert model(folder, URL + lines, {"SET": "x"}) == [f"models[0].{problem}" for problem in problems]


def test_an_unknown_transport_is_refused(folder: Path) -> None:
    """With the words there are."""
    (problem,) = model(folder, URL + 'transport = "thread"')
    assert problem.startswith("models[0].transport: ")
    assert all(word in problem for word in ("threads", "engine", "auto"))


def test_secrets_in_the_suite_are_refused_and_not_repeated(folder: Path) -> None:
    """The suite is copied into the work_dir: no header, option or body field may hold a key."""
    found = model(
        folder,
        URL + "headers = { Authorization = 'Bearer s3cret', X-API-Key = 's3cret', api-key = 's3cret', "
        "Cookie = 's3cret', x-goog-api-key = 's3cret', X-Note = 'fine' }\n"
        "options = { api_key = 's3cret', deep = { client_secret = 's3cret' }, tokens = 'fine' }\n"
        "extra_body = { password = 's3cret' }",
    )
    environment = "secrets belong in the environment: "
    assert found == [
        f"models[0].headers.Authorization: {environment}write ${{VARIABLE}}",
        f"models[0].headers.X-API-Key: {environment}write ${{VARIABLE}}",
        f"models[0].headers.api-key: {environment}write ${{VARIABLE}}",
        f"models[0].headers.Cookie: {environment}write ${{VARIABLE}}",
        f"models[0].headers.x-goog-api-key: {environment}write ${{VARIABLE}}",
        f"models[0].options.api_key: {environment}use api_key_env or headers",
        f"models[0].options.deep.client_secret: {environment}use api_key_env or headers",
        f"models[0].extra_body.password: {environment}use api_key_env or headers",
    ]
    assert "s3cret" not in "".join(found)


@pytest.mark.parametrize(
    "name",
    ["Ocp-Apim-Subscription-Key", "X-Portkey", "x-auth", "X_AUTH_TOKEN", "SECRET", "My-Password", "Set-Cookie",
     "X-Credential", "x-credentials", "proxy-authorization"],
)  # fmt: skip
def test_headers_whose_names_tell_a_secret(folder: Path, name: str) -> None:
    """Whatever their value looks like, it is refused, and not repeated; a variable is fine."""
    lines = f'{URL}headers = {{ {name} = "0123fine" }}'
    assert model(folder, lines) == [f"models[0].headers.{name}: {SECRETS_REMEDY}"]
    parse_suite(MODEL + lines.replace("0123fine", "${SECRET}") + "\n" + DATASET, "s", folder)


@pytest.mark.parametrize(
    "value", ["sk-live-0123456789", "Key sk_live_abcdef", "Bearer s3cret", "basic dTpw", "sk-live-012345${X}"]
)
def test_headers_whose_values_look_like_keys(folder: Path, value: str) -> None:
    """Under any name."""
    (text,) = model(folder, f'{URL}headers = {{ X-Note = "{value}" }}')
    assert text == f"models[0].headers.X-Note: {SECRETS_REMEDY}"


def test_headers_that_hold_no_secret(folder: Path) -> None:
    """Names that only resemble, values that are no keys, and schemes before a variable."""
    lines = (
        'headers = { X-Max-Tokens = "5", Keyword = "a", Accept-Language = "sk-SK", Org = "org-0123456789abcdefghijk", '
        'A = "Bearer ${T}", B = "task-0123456789" }\n'
    )
    assert len(parse_suite(MODEL + lines + DATASET, "s", folder).models[0].headers) == 6


def test_a_key_in_the_wrong_place_is_not_repeated(folder: Path) -> None:
    """Neither as a number, as a word out of a list, nor as a path."""
    key = "sk-live-0123456789abcdefg"
    found = model(folder, f'{URL}max_workers = "{key}"\nmax_tokens_field = "{key}"\n')
    found += refused(folder, f'base_dir = "{key}"\n{MODEL}{DATASET}metric = "{key}"\n')
    assert len(found) == 4
    assert key not in "".join(found)
    assert "models[0].max_workers: expected an integer >= 1, got a text of 25 characters" in found


def test_headers_must_be_sendable(folder: Path) -> None:
    """Names and values that HTTP can't carry, and one header under two spellings."""
    assert model(folder, URL + 'headers = { "a b" = "x", X = "a\\nb", Y = "${1}", x = "c" }') == [
        'models[0].headers."a b": isn\'t a valid name of a header',
        "models[0].headers.X: the value holds a control character: remove it",
        "models[0].headers.Y: expected the name of a variable between ${ and }",
        "models[0].headers.x: is the same header as X: names of headers ignore case",
    ]


def test_dataset_files_must_be_there_unless_the_reader_needs_none(folder: Path) -> None:
    """A missing file is found before the run; evald, which reads the planned tasks, loads the suite without it."""
    (folder / "dir.jsonl").mkdir()
    assert dataset(folder, 'path = "none.jsonl"') == [
        f"datasets[0].path: no such file: {folder}/none.jsonl (another: --path ABBR=FILE)"
    ]
    assert dataset(folder, 'path = "dir.jsonl"') == [
        f"datasets[0].path: is no file: {folder}/dir.jsonl (another: --path ABBR=FILE)"
    ]
    assert dataset(folder, f'path = "{"x" * 300}.jsonl"') == [
        f"datasets[0].path: can't be read: File name too long: {folder}/{'x' * 300}.jsonl"
    ]
    text = MODEL + DATASET.replace("d.jsonl", "none.jsonl")
    assert parse_suite(text, "s", folder, check_files=False).datasets[0].path == "none.jsonl"


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (
            'path = "d.jsonl"\nmetric = ["f1", "blue", "f1"]',
            [
                'datasets[0].metric[1]: unknown "blue"; did you mean bleu?',
                "datasets[0].metric[2]: f1 is named twice: give one of them a `label`",
            ],
        ),
        (
            'path = "d.jsonl"\npost_process = "lastnumber"',
            ['datasets[0].post_process: unknown "lastnumber"; did you mean last_number?'],
        ),
        (
            'path = "rows.csv"',
            ["datasets[0].fields: is required for csv: say which column holds the target"],
        ),
        (
            'path = "rows.csv"\nfields = { prompt = "q" }',
            ["datasets[0].fields.target: is required for plain rows: the field that holds the right answer"],
        ),
        (
            'path = "rows.csv"\nfields = { prompt = "q", target = "a" }\nprompt = "{{ q }}"',
            ["datasets[0].prompt: expected one of fields.prompt, prompt, messages, got fields.prompt and prompt"],
        ),
        (
            'path = "rows.csv"\nfields.target = "a"\nprompt = "x"\n'
            'messages = [{ role = "user", content = "{% if %}" }]',
            [
                "datasets[0].messages: expected one of fields.prompt, prompt, messages, got prompt and messages",
                "datasets[0].messages[0].content: isn't a valid template: line 1: Expected an expression, "
                "got 'end of statement block'",
            ],
        ),
        (
            'path = "rows.csv"\nrequest_type = "multiple_choice"\n'
            'fields = { prompt = "q", choices = "c", gold = "g" }\n'
            'choices = ["A", "{{ b"]',
            [
                "datasets[0].choices: expected one of fields.choices, choices, got both",
                "datasets[0].choices[1]: isn't a valid template: line 1: unexpected end of template, expected 'end of "
                "print statement'.",
            ],
        ),
        (
            'path = "rows.csv"\nfields.target = "a"',
            ["datasets[0]: expected one of fields.prompt, prompt, messages: where prompts come from"],
        ),
        (
            'path = "rows.csv"\nfields.target = "a"\nmessages = []',
            ["datasets[0].messages: expected at least one message, got none"],
        ),
        (
            'path = "rows.csv"\nfields.target = "a"\nprompt = "a\\n{{ q | nofilter }}"',
            ["datasets[0].prompt: isn't a valid template: line 2: No filter named 'nofilter'."],
        ),
        (
            'path = "rows.csv"\nfields = { prompt = "q", target = "a" }\ntarget_regex = "(x"',
            [
                "datasets[0].target_regex: isn't a valid regular expression: "
                "missing ), unterminated subpattern at position 0"
            ],
        ),
        (
            'path = "d.jsonl"\ntarget_regex = "x"\ncolumns = ["q"]',
            [
                "datasets[0].target_regex: is for plain rows: TaskSpec lines hold their targets ready",
                "datasets[0].columns: is for csv and tsv files without a header, this one is jsonl",
            ],
        ),
        (
            'path = "rows.csv"\nfields = { prompt = "q", target = "a" }\ncolumns = ["q", "q", "a"]',
            ['datasets[0].columns: names "q" twice'],
        ),
        (
            'path = "suite.toml"',
            [
                "datasets[0].path: can't tell the format from the name (known: .jsonl, .ndjson, .json, .csv, .tsv, "
                ".parquet, also .gz): set `format`"
            ],
        ),
        (
            'path = "d.jsonl"\nlimit = 0\nrepeats = 1.5\ngeneration.max_tokens = 0',
            [
                "datasets[0].limit: expected an integer >= 1, got 0",
                "datasets[0].repeats: expected an integer >= 1, got 1.5",
                "datasets[0].generation.max_tokens: expected an integer >= 1, got 0",
            ],
        ),
    ],
)
def test_datasets_are_checked_in_full(folder: Path, lines: str, problem: list[str]) -> None:
    """Vocabularies, templates, patterns and contradictions, each with its place and the remedy."""
    (folder / "suite.toml").touch()
    assert dataset(folder, lines) == problem


def test_parquet_without_pyarrow_names_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found when the suite is read, with the command that mends it."""
    (folder / "d.parquet").touch()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert dataset(folder, 'path = "d.parquet"\nfields = { prompt = "q", target = "a" }') == [
        "datasets[0].path: reading Parquet needs pyarrow: pip install 'tandem-eval[parquet]'"
    ]


def test_intervals_that_contradict_each_other_are_refused(folder: Path) -> None:
    """A live inferd must beat before evald gives it up, and a wait can't shrink below its first."""
    lines = "[infer]\nheartbeat_interval = 5\nbackoff_base = 9\nbackoff_max = 2\n[eval]\nheartbeat_timeout = 5\n"
    assert refused(folder, MODEL + DATASET + lines) == [
        "infer.backoff_max: expected at least infer.backoff_base (9), got 2",
        "eval.heartbeat_timeout: expected more than infer.heartbeat_interval (5), got 5: "
        "a live inferd would count as gone",
    ]


# --- base_dir and freezing --------------------------------------------------------------------------------------------


def test_base_dir_moves_the_start_of_relative_paths(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """An absolute folder in the suite wins over the suite's own; absolute paths need neither."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    suite = parse_suite(f'base_dir = "{folder}"\n{MODEL}{DATASET}', "s", elsewhere)
    assert dataset_path(suite, suite.datasets[0]) == folder / "d.jsonl"
    suite = parse_suite(MODEL + DATASET.replace("d.jsonl", f"{folder}/d.jsonl"), "s", elsewhere)
    assert dataset_path(suite, suite.datasets[0]) == folder / "d.jsonl"
    assert refused(folder, f'base_dir = "data"\n{MODEL}{DATASET}') == [
        'base_dir: expected an absolute path, got "data"'
    ]


def test_a_frozen_suite_finds_its_files_from_anywhere(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Freezing adds one line; comments stay, and freezing again changes nothing."""
    text = f"# mine\n{MODEL}# more\n{DATASET}"
    frozen = freeze(text, folder)
    assert frozen == f'base_dir = "{folder}"\n{text}'
    assert freeze(frozen, Path("/elsewhere")) == frozen
    assert freeze(b"\xef\xbb\xbf" + text.encode(), folder) == frozen
    moved = tmp_path_factory.mktemp("work") / "suite.toml"
    moved.write_text(frozen)
    assert load(moved) == parse_suite(text, "s", folder)


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20))
def test_any_folder_can_be_frozen(name: str) -> None:
    """Quotes, backslashes, line ends, DEL and emoji in a folder's name come back from TOML as they were."""
    folder = Path("/") / name
    raw = tomllib.loads(freeze(MODEL + DATASET, folder))
    assert raw["base_dir"] == str(folder)
    assert raw["models"] == [{"abbr": "m", "type": "rule"}]


def test_what_cant_be_frozen_is_refused(folder: Path) -> None:
    """Text that is no TOML, and a folder whose name is no text."""
    with pytest.raises(SuiteError, match=r"^suite:1: not valid TOML: "):
        freeze("x", folder)
    with pytest.raises(SuiteError, match=r"^base_dir: the folder's name isn't UTF-8: '/\\udcff': rename it$"):
        freeze(MODEL, Path("/\udcff"))


# --- what ships -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["minimal", "openai", "gsm8k-local"])
def test_the_examples_are_valid(name: str) -> None:
    """Every example passes the check as it stands, and all tasks of those with data of their own are read."""
    own_data = name != "gsm8k-local"
    suite = load(EXAMPLES / f"{name}.toml", check_files=own_data)
    if own_data:
        for dataset in suite.datasets:
            assert len(list(read_tasks(dataset, dataset_path(suite, dataset)))) >= 3


def test_the_template_is_valid_as_written(tmp_path: Path) -> None:
    """`evalctl init` leaves a suite that runs at once."""
    (tmp_path / "suite.toml").write_text(template.SUITE)
    (tmp_path / template.TASKS_NAME).write_text(template.TASKS)
    suite = load(tmp_path / "suite.toml", {})
    assert [model.type for model in suite.models] == ["rule", "noisy"]
    assert len(list(read_tasks(suite.datasets[0], dataset_path(suite, suite.datasets[0])))) == 8


def test_every_option_of_the_template_is_valid_when_uncommented(tmp_path: Path) -> None:
    """What a user uncomments is right, and the values called defaults are the defaults."""
    text = re.sub(r"^# (?=\[\[|[a-z_]+ = )", "", template.SUITE, flags=re.MULTILINE)
    assert text.count("[[models]]\n") == 4
    suite = parse_suite(text, "s", tmp_path, check_files=False)
    assert suite.models[2].headers == {"X-Team": "${TEAM}"}
    assert suite.datasets[1].target_regex == r"####\s*(.+)"
    plain = Suite(models=(), datasets=())
    for section in ("infer", "eval"):
        for key in tomllib.loads(text)[section]:
            if key != "max_workers":  # depends on the machine
                assert getattr(getattr(suite, section), key) == getattr(getattr(plain, section), key)
