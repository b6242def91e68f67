"""The loader of prompt files: every format, every bad line named, nothing loaded twice."""

import csv
import io
import json

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from local.prompts import BadLine, Prompt, PromptsFileError, load, read
from local.runner import PROJECT


@pytest.fixture
def file(tmp_path):
    def write(content, name="prompts.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def good(path):
    return [record for record in read(path) if isinstance(record, Prompt)]


def bad(path):
    return {record.line: record.reason for record in read(path) if isinstance(record, BadLine)}


def texts(path):
    return [record.prompt for record in good(path)]


def test_csv_with_every_column(file):
    path = file(
        "prompt,model,params,priority,reference,run_after\n"
        'a cup,sume/fast,"{""aspect_ratio"": ""1:1""}",0,cup-1,2030-01-31T09:00:00Z\n'
        "a pot,,,,,\n"
    )
    assert list(read(path)) == [
        Prompt(
            2,
            "a cup",
            "sume/fast",
            '{"aspect_ratio": "1:1"}',
            0,
            "cup-1",
            "2030-01-31T09:00:00+00:00",
        ),
        Prompt(3, "a pot"),
    ]


def test_csv_quotes_hold_separators_quotes_and_line_ends(file):
    path = file('prompt\r\n"one, ""two""\r\nthree"\r\nnext\r\n')
    assert list(read(path)) == [Prompt(2, 'one, "two"\r\nthree'), Prompt(4, "next")]


@pytest.mark.parametrize("separator", [";", "\t", ","])
def test_csv_separators(file, separator):
    path = file(separator.join(["Priority", " Prompt "]) + "\n" + separator.join(["2", "a cup"]))
    assert list(read(path)) == [Prompt(2, "a cup", priority=2)]


def test_byte_order_mark_and_old_line_ends(file):
    assert texts(file(b"\xef\xbb\xbfprompt\ra\rb\r")) == ["a", "b"]
    assert texts(file(b"\xef\xbb\xbf" + b'{"prompt": "a"}\n', "x.jsonl")) == ["a"]
    assert texts(file(b"\xef\xbb\xbfa\r\nb", "x.txt")) == ["a", "b"]


def test_a_bad_byte_is_a_bad_line_and_the_rest_goes_on(file):
    assert bad(file(b"prompt\ngood\nb\xe4d\nfine\n")) == {3: "prompt is not UTF-8: byte 0xe4"}
    assert texts(file(b"prompt\ngood\nb\xe4d\nfine\n")) == ["good", "fine"]
    assert bad(file(b'"good"\n"b\xe4d"\n', "x.jsonl")) == {2: "the line is not UTF-8: byte 0xe4"}
    assert bad(file(b"good\nb\xe4d\n", "x.txt")) == {2: "prompt is not UTF-8: byte 0xe4"}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ('"",sume/auto', "has no prompt"),
        ("x" * 32_001, "prompt has 32001 characters, at most 32000 are accepted"),
        ("a\0b", "prompt holds a NUL character"),
        ("a,b c", "model must be a name of at most 200 printable ASCII characters"),
        ('a,,"[1]"', "params is not a JSON object"),
        ("a,,{", "params is not JSON: Expecting property name enclosed in double quotes at"),
        ('a,,"{""mode"": 1}"', "params may not hold mode"),
        ('a,,"{""prompt"": 1, ""webhook_url"": 2}"', "params may not hold prompt or webhook_url"),
        ('a,,"{""x"": NaN}"', "params is not JSON: NaN is not JSON"),
        ('a,,"{""x"": 1e999}"', "params holds a number that is too large"),
        ('a,,"{""x"": ""\\u0000""}"', "params holds a NUL character"),
        ('a,,"{""x"": ""\\ud800""}"', "params holds half a character"),
        ("a,,,4", "priority must be 0 (first), 1, 2 or 3 (last)"),
        ("a,,,-1", "priority must be"),
        ("a,,,1.0", "priority must be"),
        ("a,,,high", "priority must be"),
        ("a,,,," + "r" * 501, "reference is longer than 500 bytes"),
        ("a,,,,,tomorrow", "run_after must be an instant with its time zone"),
        ("a,,,,,2030-01-31T09:00:00", "run_after must be an instant with its time zone"),
        ("one, two, three, four, five, six, seven", "has 7 columns, the header 6"),
        ('"a"b', "a quote is closed in the middle of a value"),
        ('"never closed', "a quote is opened here and never closed"),
    ],
)
def test_csv_reasons(file, row, reason):
    path = file(f"prompt,model,params,priority,reference,run_after\nfirst\n{row}\nlast\n")
    assert texts(path) == ["first", "last"]
    assert list(bad(path)) == [3]
    assert bad(path)[3].startswith(reason)


def test_a_stray_quote_does_not_swallow_the_lines_behind_it(file):
    rows = [f"prompt {n}" for n in range(2000)]
    rows[100] = '"' + rows[100]
    path = file("prompt\n" + "\n".join(rows) + "\n")
    assert list(bad(path)) == [102]
    assert texts(path) == rows[:100] + rows[101:]
    # Long enough to fill any buffer.
    path = file('prompt\n"open\n' + "word " * 10 + "\n" + ("x" * 999 + "\n") * 3000)
    assert list(bad(path)) == [2]
    assert len(texts(path)) == 3001


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "the line is not JSON"),
        ("[1]", "is JSON, but neither an object nor a text"),
        ("7", "is JSON, but neither an object nor a text"),
        ("{}", "has no prompt"),
        ('{"prompt": null}', "prompt is empty"),
        ('{"prompt": "  "}', "prompt is empty"),
        ('""', "prompt is empty"),
        ('{"prompt": ["a"]}', "prompt is not a text"),
        ('{"prompt": "\\u0000"}', "prompt holds a NUL character"),
        ('{"prompt": "\\ud83d"}', "prompt holds half a character (a lone surrogate)"),
        ('{"prompt": "a", "params": [1]}', "params is not a JSON object"),
        ('{"prompt": "a", "priority": true}', "priority must be"),
        ('{"prompt": "a", "priority": 1.5}', "priority must be"),
        ('{"prompt": "a", "model": 1}', "model must be"),
        ('{"prompt": "a", "reference": ""}', "reference must be a text that is not empty"),
        ('{"prompt": "a", "run_after": 5}', "run_after must be"),
        ("[" * 100_000, "the line is JSON that is nested too deeply"),
        ("9" * 5000, "the line is not JSON: Exceeds the limit"),
        ("NaN", "the line is not JSON: NaN is not JSON"),
    ],
)
def test_json_reasons(file, line, reason):
    path = file(f'"first"\n{line}\n\n{{"prompt": "last", "params": {{"n": 1}}}}\n', "x.jsonl")
    assert list(bad(path)) == [2]
    assert bad(path)[2].startswith(reason)
    assert good(path) == [Prompt(1, "first"), Prompt(4, "last", params='{"n": 1}')]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("x", '{"prompt": "a"}\n', ["a"]),
        ("x.csv", '{"prompt": "a"}\n', ["a"]),
        ("x.txt", '{"prompt": "a"}\n', ['{"prompt": "a"}']),
        ("x", "prompt,priority\na,1\n", ["a"]),
        ("x", "prompt\na\n", ["a"]),
        ("x.txt", "prompt\na, b\n", ["prompt", "a, b"]),
        ("x", "a cup, a pot\n\n  a pan  \n", ["a cup, a pot", "a pan"]),
        ("x.csv", "", []),
        ("x", "\n\n", []),
        ("x.ndjson", '"a"\n', ["a"]),
    ],
)
def test_the_format_is_known_by_extension_and_content(file, name, content, expected):
    assert texts(file(content, name)) == expected


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("text,priority\na,1\n", "no column is named prompt"),
        ("prompt,model,model\na,b,c\n", "two columns are named model"),
        ("prompt\na\n".encode("utf-16"), "UTF-16: save it as UTF-8"),
    ],
)
def test_files_that_cannot_be_used_at_all(file, content, reason):
    with pytest.raises(PromptsFileError, match=reason):
        list(read(file(content)))


def test_a_missing_file_is_a_clear_error(tmp_path):
    with pytest.raises(PromptsFileError, match="cannot be read: No such file"):
        list(read(tmp_path / "nothing.csv"))
    with pytest.raises(PromptsFileError, match="cannot be read: Is a directory"):
        list(read(tmp_path))


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.one_of(
        st.binary(max_size=400),
        st.text(alphabet='",\n\r{}[]:;\\pamrost 01é\0', max_size=300).map(str.encode),
        st.text(alphabet='",\n\r ab', max_size=200).map(
            lambda text: b"prompt,params\n" + text.encode()
        ),
    ),
    name=st.sampled_from(["x.csv", "x.tsv", "x.jsonl", "x.txt", "x"]),
)
def test_no_content_makes_it_crash(tmp_path, content, name):
    path = tmp_path / name
    path.write_bytes(content)
    lines = io.StringIO(content.decode("utf-8", "replace"), newline=None).read().count("\n") + 1
    try:
        records = list(read(path))
    except PromptsFileError:
        return
    numbers = [record.line for record in records]
    assert numbers == sorted(numbers)
    assert all(1 <= number <= lines for number in numbers)
    for record in records:
        if isinstance(record, Prompt):
            record.prompt.encode()
            assert record.prompt.strip()


cells = st.text(
    st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=60
).filter(str.strip)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(prompts=st.lists(cells, min_size=1, max_size=8))
def test_what_a_csv_writer_wrote_is_read_back(tmp_path, prompts):
    path = tmp_path / "x.csv"
    with path.open("w", encoding="utf-8", newline="") as text:
        writer = csv.writer(text, quoting=csv.QUOTE_ALL)
        writer.writerows([["prompt"], *([prompt] for prompt in prompts)])
    assert texts(path) == prompts
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    assert texts(path) == prompts


# Into the database --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def database(local_database):
    with psycopg.connect(local_database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def rows(database):
    database.execute("truncate render_jobs")

    def fetch(columns="prompt"):
        return database.execute(f"select {columns} from render_jobs order by id").fetchall()

    return fetch


def test_rows_are_inserted_in_the_order_of_the_file(database, rows, file):
    path = file(
        "prompt,model,params,priority,run_after\n"
        'a,sume/x,"{""n"": 1}",0,2030-01-31T09:00:00+01:00\nb,,,,\n'
    )
    loaded = load(database, path)
    assert (loaded.inserted, loaded.present, loaded.bad) == (2, 0, [])
    first, second = rows("prompt, model, params, priority, extract(epoch from run_after)")
    assert first == ("a", "sume/x", {"n": 1}, 0, 1896076800)
    assert second[:4] == ("b", "sume/auto", {}, 1)
    assert rows("status")[0] == ("pending",)


def test_loading_again_adds_only_what_is_new(database, rows, file):
    assert load(database, file("prompt\na\nb\n")).inserted == 2
    again = load(database, file("prompt\na\nb\nc\n"))
    assert (again.inserted, again.present) == (1, 2)
    changed = load(database, file("prompt\na\nB\nc\n"))
    assert (changed.inserted, changed.present) == (1, 2)
    other_run = load(database, file("prompt\na\n"), reference_prefix="second:")
    assert other_run.inserted == 1
    assert rows("reference")[0][0].startswith("prompts.csv:")


def test_an_equal_prompt_on_another_line_is_another_row(database, rows, file):
    assert load(database, file("prompt\nsame\nsame\n")).inserted == 2


def test_references_of_the_file_are_used_and_never_twice(database, rows, file):
    path = file("prompt,reference\na,r1\nb,r1\nc,\n")
    loaded = load(database, path)
    assert loaded.inserted == 2
    assert loaded.bad == [BadLine(3, "reference 'r1' is already on line 2")]
    assert load(database, path).present == 2


def test_what_the_database_refuses_is_a_bad_line_and_the_rest_goes_in(database, rows, file):
    # Postgres knows no time zone offset of that size, and no year so far away.
    lines = [f"prompt {n}" for n in range(1200)]
    for n in (0, 499, 500, 777, 1199):
        lines[n] += ",0001-01-01T00:00:00+23:59"
    loaded = load(database, file("prompt,run_after\n" + "\n".join(lines) + "\n"))
    assert loaded.inserted == 1195
    assert [bad.line for bad in loaded.bad] == [2, 501, 502, 779, 1201]
    assert loaded.bad[0].reason.startswith("refused by the database: ")


def test_progress_and_unknown_columns_are_told(database, rows, file):
    seen = []
    path = file("prompt,notes,id\n" + "a,b,c\n" * 1001)
    loaded = load(
        database, path, on_batch=lambda so_far, batch: seen.append((so_far.inserted, len(batch)))
    )
    assert seen == [(500, 500), (1000, 500), (1001, 1)]
    assert loaded.ignored_columns == ["id", "notes"]


def test_an_error_of_the_server_is_not_taken_for_a_bad_row(local_database, file):
    connection = psycopg.connect(local_database, autocommit=True)
    connection.close()
    with pytest.raises(psycopg.OperationalError):
        load(connection, file("prompt\na\n"))


def test_the_sample_is_accepted_as_a_whole(database, rows):
    loaded = load(database, PROJECT / "local" / "sample_prompts.csv")
    assert loaded.bad == []
    assert loaded.ignored_columns == []
    assert loaded.inserted >= 200
    prompts = [prompt for (prompt,) in rows()]
    assert len(set(prompts)) == len(prompts)
    assert len(rows("prompt")) == loaded.inserted
    assert {priority for (priority,) in rows("priority")} == {0, 1, 2, 3}
    assert any(params for (params,) in rows("params"))


# ------------------------------------------------------------------------- whole documents


def test_a_json_array_of_objects_and_texts(file):
    path = file(
        '[\n  {"prompt": "a cup",\n   "params": {"aspect_ratio": "1:1"}},\n  "a pot",\n'
        '  {"prompt": "a pan", "colour": "red"}, 7\n]\n',
        "prompts.json",
    )
    assert list(read(path)) == [
        Prompt(2, "a cup", params='{"aspect_ratio": "1:1"}'),
        Prompt(4, "a pot"),
        Prompt(5, "a pan"),
        BadLine(5, "is JSON, but neither an object nor a text"),
    ]


@pytest.mark.parametrize("content", ["[]", " [ ]\n"])
def test_an_empty_json_array_has_no_prompt(file, content):
    assert list(read(file(content, "prompts.json"))) == []


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        ('["a cup",\n"a pot"\n"a pan"]', 3, "a comma or ] is missing"),
        ('["a cup",\n"a pot",\n]', 3, "is not JSON from here on"),
        ('["a cup",\n"a pot",\n{"prompt": ]', 3, "is not JSON from here on: Expecting value"),
        ('["a cup",\n"a pot"\n', 3, "a comma or ] is missing"),
        ('["a cup",\n"a pot"]\nx', 2, "is not JSON from here on"),
        ('["a cup",\n"a pot",\n' + "[" * 100_000, 3, "nested too deeply"),
    ],
)
def test_what_precedes_a_mistake_in_a_json_array_is_used(file, content, line, reason):
    *used, broken = read(file(content, "prompts.json"))
    assert [each.prompt for each in used] == ["a cup", "a pot"]
    assert broken.line == line
    assert reason in broken.reason


def test_yaml_lists_and_documents(file):
    path = file(
        "- a cup\n- prompt: |\n    a pot\n    of tea\n  priority: 0\n"
        "  run_after: 2030-01-31T09:00:00Z\n  params: {size: [1, 2]}\n- 12\n"
        "---\nprompt: a pan\ncolour: red\n---\n",
        "prompts.yaml",
    )
    assert list(read(path)) == [
        Prompt(1, "a cup"),
        Prompt(
            2,
            "a pot\nof tea\n",
            params='{"size": [1, 2]}',
            priority=0,
            run_after="2030-01-31T09:00:00+00:00",
        ),
        BadLine(8, "is JSON, but neither an object nor a text"),
        Prompt(10, "a pan"),
    ]


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        ("- a cup\n---\n- prompt: 'a pot\n", 4, "is not YAML from here on"),
        ("- a cup\n---\n- *nowhere\n", 3, "undefined alias"),
        ("- a cup\n- !!python/object:os.system {}\n", 2, "is not YAML from here on"),
        ("- a cup\n- prompt: a pot\n  params: {at: !!binary aGk=}\n", 2, "what JSON cannot hold"),
        ("- a cup\n- &a [*a]\n", 2, "neither an object nor a text"),
    ],
)
def test_what_precedes_a_mistake_in_yaml_is_used(file, content, line, reason):
    first, *_, broken = read(file(content, "prompts.yml"))
    assert first.prompt == "a cup"
    assert broken.line == line
    assert reason in broken.reason


def test_bytes_that_are_no_text_are_told_in_documents(file):
    assert bad(file(b'["a cup", "\xff"]', "prompts.json")) == {
        1: "the record is not UTF-8: byte 0xff"
    }
    assert bad(file(b"- a\n- \xff", "prompts.yaml")) == {2: "is not UTF-8"}
    (control,) = read(file("- a\n- \a", "prompts.yaml"))
    assert "YAML" in control.reason


def test_a_document_is_read_as_a_whole_only_up_to_a_size(file, monkeypatch):
    monkeypatch.setattr("local.prompts.DOCUMENT_CHARACTERS", 10)
    with pytest.raises(PromptsFileError, match="more than 10 characters: write it as JSON lines"):
        list(read(file('["a cup", "a pot"]', "prompts.json")))
