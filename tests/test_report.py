"""`gridpact report`: what the page is made of, what it escapes, what changed between runs, and mistakes of the user."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gridpact import cli
from gridpact.conformance import evidence, model, report
from gridpact.conformance.changes import changes
from gridpact.conformance.page import build, content, demonstration, digest, pictures

ROOT = Path(__file__).parent.parent
PICTURES = [*sorted((ROOT / "docs" / "data").glob("*.json")), ROOT / "bench" / "results" / "h200.json"]


def run(*arguments):
    return CliRunner().invoke(cli.app, ["report", *map(str, arguments)])


def record(clause, case, subject, verdict="pass", **fields):
    return evidence.Record(clause, f"{clause}:{case}", subject, verdict, **fields)


def write(path, *records):
    path.write_bytes(b"".join(it.line() for it in records))
    return path


class Elements(HTMLParser):
    """Counts elements, and keeps the text of the page and of its records apart."""

    def __init__(self, page):
        super().__init__()
        self.names, self.attributes, self.text, self.records, self._inside = [], [], "", "", ""
        self.feed(page.decode())

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self.attributes += [(tag, *it) for it in attrs]
        self._inside = dict(attrs).get("id") if tag == "script" else tag

    def handle_data(self, data):
        if self._inside == "records":
            self.records += data
        else:
            self.text += data


# -- what the page says


RECORDS = [
    record("GRID-3", "a:grid=2", "gridpact:own", is_own=True, device="a device", versions={"triton": "3.6.0"}),
    record("GRID-3", "a:grid=2", "triton:x", "violated", expected="due", observed="seen", program="long program"),
    record("GRID-3", "a:grid=1", "triton:x", "violated", expected="due", observed="seen", program="short"),
    record("GRID-3", "b", "triton:x", "unguarded", program="s"),
    record("GRID-3", "c", "triton:x", "pass", program="of a pass", stderr="of a pass"),
    record("GRID-8", "a", "triton:x", "unsupported", observed="it loops"),
    record("GRID-4", "a", "triton:x", "unsupported", observed="it loops"),
    record("OTHER-1", "a", "triton:x"),
]


def test_clauses_stand_in_the_order_of_the_contract_and_unknown_ones_last():
    told = content.describe(RECORDS)
    assert [clause.number for clause in told.clauses] == ["GRID-3", "GRID-4", "GRID-8", "OTHER-1"]
    first, *_, last = told.clauses
    assert first.sentence == model.CLAUSES["GRID-3"].sentence
    assert {plan.kind for plan in first.plans} == {"control", "negative"}
    assert (last.sentence, last.plans) == ("", ())


def test_our_own_subjects_come_first_and_cells_count_passes_of_what_was_asked():
    told = content.describe(RECORDS)
    assert [subject.name for subject in told.subjects] == ["gridpact:own", "triton:x"]
    own, other = told.clauses[0].cells
    assert (own.verdict, own.told) == ("pass", "1/1")
    assert (other.verdict, other.told) == ("violated", "1/4")
    assert told.clauses[1].cells[0] is None
    assert told.clauses[1].cells[1].told == "none"


def test_the_smallest_program_that_shows_a_violation_is_the_clauses():
    clause = content.describe(RECORDS).clauses[0]
    assert clause.program == "short"  # not that of what is unguarded alone
    assert clause.shows == "GRID-3:a:grid=1 on triton:x"


def test_answers_lead_to_the_case_that_tells_most():
    (_, tests), (_, points) = content.describe(RECORDS).answers
    assert len(tests) == len(points) == 7
    assert tests[3].cells[1].link == "#GRID-3--1?case=GRID-3:a:grid%3D1"
    assert tests[3].cells[1].verdict == "violated"
    assert tests[1].cells == (None, None)


def test_what_was_not_run_is_told_once_a_reason():
    (reason,) = content.describe(RECORDS).reasons
    assert (reason.text, reason.count, reason.clauses, reason.subjects) == (
        "it loops",
        2,
        ("GRID-4", "GRID-8"),
        ("triton:x",),
    )


def test_programs_of_passes_are_left_out_and_equal_texts_stand_once():
    embedded = content.describe(RECORDS * 2).embedded
    assert "of a pass" not in embedded["texts"]
    assert len(embedded["texts"]) == len(set(embedded["texts"]))
    rows = embedded["clauses"]["GRID-3"]["records"]
    assert len(rows) == 10
    number = embedded["clauses"]["GRID-3"]["cases"].index("GRID-3:a:grid=1")
    (_, subject, verdict, _, due, seen, program, _, _) = next(row for row in rows if row[0] == number)
    assert embedded["subjects"][subject] == "triton:x"
    assert embedded["verdicts"][verdict][0] == "violated"
    assert [embedded["texts"][at] for at in (due, seen, program)] == ["due", "seen", "short"]


def test_the_same_records_make_the_same_bytes():
    assert build(RECORDS) == build(list(RECORDS))
    drawn = [[pictures.draw(path)[0].svg for path in PICTURES] for _ in range(2)]
    assert drawn[0] == drawn[1]


def test_the_committed_page_is_made_from_the_committed_evidence():
    records = evidence.latest(evidence.gather([ROOT / "evidence"]))
    page = (ROOT / "docs" / "report.html").read_text()
    assert f'<meta name="evidence" content="{digest(records)}">' in page  # else: make report
    assert len(page) < 6_000_000


def test_a_page_is_one_file_that_names_no_other():
    page = Elements(build(RECORDS, [picture for path in PICTURES for picture in pictures.draw(path)]))
    links = [value for _, name, value in page.attributes if name in ("src", "href", "xlink:href", "data", "action")]
    assert links
    assert all(value.startswith(("#", "data:,")) for value in links)
    assert "@import" not in page.text
    assert not re.search(r"url\((?!#)", page.text)


# -- escaping


@pytest.mark.parametrize(
    "text", ["<script>x</script>", "</script><b>", '"><img src=x>', "<!--", "]]>", "&lt;", "{{ 1 }}", "'", "\\u003c"]
)
def test_every_value_is_escaped(text):
    fields = dict.fromkeys(("expected", "observed", "device", "driver", "asked", "program", "stderr", "command"), text)
    plain, page = (
        Elements(build([record("GRID-3", value, f"s{value}", "violated", **fields | {"observed": value})]))
        for value in ("plain", text)
    )
    names = [[name for name in found.names if name != "wbr"] for found in (page, plain)]  # which stand between words
    assert names[0] == names[1]  # not an element more
    assert page.text.count(text) >= 4
    assert text in json.loads(page.records)["texts"]
    assert "<" not in page.records


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31m", "␛[31m"),
        ("a\r\nb\tc", "a␍\nb\tc"),
        ("\u202eabc", "⟨RIGHT-TO-LEFT OVERRIDE⟩abc"),
        ("\ud800", "⟨U+D800⟩"),
        ("größer, 日本, ✓", "größer, 日本, ✓"),
    ],
)
def test_characters_that_act_on_the_text_around_them_show(text, shown):
    assert report.visible(text) == shown


# -- pictures


def test_each_picture_takes_its_colours_from_the_page_and_has_ids_of_its_own():
    drawn = [picture for path in PICTURES for picture in pictures.draw(path)]
    assert [picture.name for picture in drawn] == ["grid", "mapping", "streams", "cost-cuda-0"]
    ids = [name for picture in drawn for name in re.findall(r'\bid="([^"]+)"', picture.svg)]
    assert len(ids) == len(set(ids))
    for picture in drawn:
        assert picture.svg.startswith("<svg role=")
        assert "var(--text)" in picture.svg
        assert not re.search(r"#[0-9a-f]{6}\b(?!\w)", re.sub(r'(href="|url\()#[^")]*', "", picture.svg)), picture.name


def test_the_picture_of_the_grid_tells_right_missing_twice_and_wrong_apart():
    due = (1, 0, 0, 2, 1, 1)
    judged = [pictures._judge(seen, due) for seen in ([1, *due], [0, *[-77] * 6], [2, *due], [1, 0, 1, 0, 2, 1, 1])]
    assert judged == [pictures._RIGHT, pictures._MISSING, pictures._TWICE, pictures._WRONG]
    (picture,) = pictures.draw(ROOT / "docs" / "data" / "grid.json")
    assert "our launcher: 105 right; broken: x and y exchanged: 0 right" in picture.svg


def test_hostile_data_is_text_in_a_picture(tmp_path):
    told = json.loads((ROOT / "docs" / "data" / "grid.json").read_text())
    told["launchers"][0]["told"] = "</svg><script>$x^2$</script>"
    (path := tmp_path / "grid.json").write_text(json.dumps(told))
    (picture,) = pictures.draw(path)
    assert "<script>" not in picture.svg
    assert "&lt;script&gt;$x^2$&lt;/script&gt;" in picture.svg


def test_what_the_pictures_show_is_observed_here_too(sycl, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)  # the mapping is of an example
    demonstration.write(tmp_path)
    for path in PICTURES[:3]:
        assert (tmp_path / path.name).read_text() == path.read_text(), path.name


# -- what changed


def test_changes_are_verdicts_that_differ_new_cases_and_gone_ones():
    old = [record("GRID-3", "a", "s"), record("GRID-3", "b", "s"), record("GRID-3", "c", "s")]
    new = [
        record("GRID-3", "a", "s"),
        record("GRID-3", "b", "s", "violated", observed="8\nran"),
        record("GRID-3", "d", "s"),
    ]
    found = {(change.case, change.kind): change for change in changes(old, new)}
    assert set(found) == {("GRID-3:b", "changed"), ("GRID-3:c", "gone"), ("GRID-3:d", "new")}
    changed = found["GRID-3:b", "changed"]
    assert (changed.before, changed.now, changed.seen) == ("pass", "violated", "8")
    assert changes(old, old) == []


def test_diff_prints_what_changed_and_ends_with_1(tmp_path):
    old = write(
        tmp_path / "old.jsonl", record("GRID-3", "a", "s"), record("GRID-3", "b", "s"), record("GRID-3", "b", "t")
    )
    new = write(
        tmp_path / "new.jsonl", record("GRID-3", "a", "s", "violated", observed="[red]\x1b"), record("GRID-3", "b", "s")
    )
    result = run("--diff", old, new)
    assert result.exit_code == 1
    assert "GRID-3:a" in result.output
    assert "✓ pass" in result.output
    assert "✗ violated" in result.output
    assert "[red]␛" in result.output
    assert "t  gone: 1 cases" in result.output
    assert result.output.splitlines()[-1] == "3 cases before, 2 now: 1 changed, 0 new, 1 gone"
    same = run("--diff", old, old)
    assert same.exit_code == 0
    assert same.output == "3 cases before, 3 now: 0 changed, 0 new, 0 gone\n"


# -- records that are read, and the command


def test_of_each_case_the_last_answer_counts_whatever_the_order_of_files(tmp_path):
    early, late = (
        record("GRID-3", "a", "s", verdict, date=date) for verdict, date in (("pass", "1"), ("violated", "2"))
    )
    write(tmp_path / "a.jsonl", late)
    write(tmp_path / "b.jsonl", early)
    assert evidence.latest(evidence.gather([tmp_path])) == [late]
    assert evidence.latest(evidence.gather([tmp_path / "b.jsonl", tmp_path / "a.jsonl"])) == [late]


def test_a_record_with_half_a_surrogate_pair_is_written_and_read_back(tmp_path):
    written = record("GRID-3", "a", "s", observed="\ud800 ✓")
    assert list(evidence.read(write(tmp_path / "records.jsonl", written))) == [written]


def test_report_writes_the_page(tmp_path):
    place = tmp_path / "page.html"
    result = run(write(tmp_path / "records.jsonl", *RECORDS), "-o", place, "--picture", PICTURES[0])
    assert result.exit_code == 0, result.output
    assert result.output.replace("\n", "").startswith(f"{place}: 8 cases of 2 subjects, ")
    assert place.read_bytes() == build(RECORDS, pictures.draw(PICTURES[0]))


GOOD = record("GRID-3", "a", "s").line()


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (b"", "expected records, there are none. `gridpact verify --json FILE` writes them."),
        (GOOD + b"{\n", "records.jsonl, line 2: expected a record as one line of JSON: "),
        (b"[1]\n", "line 1: expected a record as one line of JSON: got [1] (list)."),
        (b"[" * 100_000 + b"\n", "line 1: expected a record as one line of JSON: "),
        (b'{"clause": "GRID-3"}\n', "it lacks case, subject, verdict."),
        (GOOD.replace(b'"pass"', b'"fine"'), "verdict is 'fine'; there are pass, violated"),
        (GOOD.replace(b'"pass"', b"7"), "verdict is 7 (int)."),
        (GOOD.replace(b'"versions": {}', b'"versions": {"triton": 3}'), "version of 'triton' is 3 (int)."),
        (b"\xff\xfe\n", "line 1: expected a record as one line of JSON: "),
    ],
)
def test_evidence_that_is_none_is_named_by_file_and_line(tmp_path, lines, told):
    path = tmp_path / "records.jsonl"
    path.write_bytes(lines)
    result = run(path, "-o", tmp_path / "page.html")
    assert result.exit_code == 2
    assert str(path) in result.output
    assert told in result.output
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere.jsonl"], "nowhere.jsonl: expected a file of records or a folder of them, there is nothing."),
        (["empty"], "empty: expected records, there are none."),
        (
            ["good.jsonl", "-o", "no/such/page.html"],
            "--output: expected a file in a folder that exists, got 'no/such/page.html'.",
        ),
        (["good.jsonl", "-o", "empty"], "--output: expected a file in a folder that exists, got 'empty'."),
        (["good.jsonl", "--picture", "none.json"], "none.json: expected a file of JSON: No such file or directory."),
        (["good.jsonl", "--picture", "good.jsonl"], "good.jsonl: expected what gridpact bench --json or"),
        (["good.jsonl", "--picture", "other.json"], "other.json: expected what gridpact bench --json or"),
        (["--diff", "good.jsonl"], "--diff: expected two places of evidence, OLD NEW, got 1."),
        (["--diff", "good.jsonl", "nowhere"], "nowhere: expected a file of records"),
        (["--diff", "good.jsonl", "good.jsonl", "-o", "x.html"], "--diff: it prints what changed and makes no page."),
    ],
)
def test_a_mistake_is_a_sentence_and_ends_with_2(tmp_path, monkeypatch, arguments, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "good.jsonl").write_bytes(GOOD)
    (tmp_path / "other.json").write_text('{"kind": "grid", "grid": [1, 1]}')
    result = run(*arguments)
    assert result.exit_code == 2
    assert told in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)


@pytest.mark.parametrize(("lacking", "options"), [("jinja2", []), ("matplotlib", ["--picture", "x.json"])])
def test_without_its_libraries_it_says_what_to_install(tmp_path, monkeypatch, lacking, options):
    monkeypatch.setattr(cli, "find_spec", lambda name: None if name == lacking else object())
    result = run(write(tmp_path / "records.jsonl", *RECORDS), *options)
    assert result.exit_code == 2
    assert result.output == f"report: {lacking} is not installed. Run: pip install 'gridpact[report]'.\n"
