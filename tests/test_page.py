"""The page in a real browser: filters, links, keyboard, widths, light and dark, size, and evidence that is hostile."""

import itertools
from urllib.parse import quote

import pytest

from gridpact.conformance import evidence, model
from gridpact.conformance.page import build

VERDICTS = ("pass", "violated", "unguarded", "unsupported")


def record(clause, case, subject, verdict="pass", **fields):
    return evidence.Record(
        clause,
        f"{clause}:{case}",
        subject,
        verdict,
        **{"expected": "due", "observed": "seen", "date": "2026-11-30T10:00:00+00:00", "command": "gridpact verify"}
        | fields,
    )


def few():
    """Records of three subjects: ours passes, one is violated, one could not be asked."""
    for clause, case in itertools.product(("GRID-3", "GRID-4", "STREAM-1"), ("other_length_is_refused:grid=four", "b")):
        yield record(clause, case, "gridpact:own", is_own=True)
        is_broken = clause == "GRID-3"
        program = f"print({clause!r}, {case!r})" if is_broken else ""
        yield record(clause, case, "triton:other", "violated" if is_broken else "pass", program=program, asked="k[4]()")
        yield record(clause, case, "third:party", "unsupported", observed="it cannot")


def many():
    """Records of 20 subjects, 60 clauses and 5,000 cases."""
    numbers = [f"GRID-{at}" for at in range(1, 31)] + [f"HOOK-{at}" for at in range(1, 31)]
    subjects = [f"somebody:launcher:{at}" for at in range(20)]
    cells = itertools.cycle(itertools.product(numbers, subjects))
    for at, (clause, subject) in zip(range(5000), cells, strict=False):
        verdict = VERDICTS[(at // 7) % 4]
        yield record(clause, f"case_{at // 1200}:at={at}", subject, verdict, is_own=subject.endswith(":0"))


HOSTILE = (
    "<script>window.executed = 1</script>",
    "</script><script>window.executed = 1</script>",
    '"><img src=x onerror="window.executed = 1">',
    "'-alert(1)-' {{ 7 * 7 }} {% raw %} <!-- <script> ]]>",
    "\x1b[31mred\x1b[0m \x00 \x9b",
    "\u202egnp.exe \u2066 \u200f",
    "\u2028 \u2029 \ud800",
    "x" * 30_000,
)


def hostile():
    """Give records whose every field is hostile."""
    for at, text in enumerate(HOSTILE):
        yield record(
            *("GRID-4", f"a:{text}", f"sub{text[:200]}"),
            verdict="violated",
            **dict.fromkeys(("expected", "observed", "device", "driver", "asked", "program", "stderr"), text),
            command=f"gridpact {text}",
            versions={text: text},
            date=f"2026{text[:300]}",
        )
        yield record(f"{text[:300]}-{at}", "b", "other", "unsupported", observed=text)


@pytest.fixture(scope="session")
def pages(tmp_path_factory):
    """Give the address of a page that is made of some records, made once."""
    folder, made = tmp_path_factory.mktemp("pages"), {}

    def address(records):
        name = records.__name__
        if name not in made:
            made[name] = folder / f"{name}.html"
            made[name].write_bytes(build(list(records())))
        return made[name].as_uri()

    return address


@pytest.fixture
def show(browser, pages):
    """Open a page, and demand at the end that it has asked the network for nothing and that the console is empty."""
    opened, said = [], []

    def open_page(records, anchor="", *, width=1280, height=900, scheme="light"):
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce"
        )
        context.set_default_timeout(10_000)  # milliseconds
        page = context.new_page()
        opened.append(context)
        asked = []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: asked.append(request.url))
        address = pages(records)
        page.route("**/*", lambda route: route.continue_() if route.request.url == address else route.abort())
        page.goto(address + anchor)
        said_for_page[page] = asked
        return page

    said_for_page = {}
    open_page.said = said
    yield open_page
    requests = {
        page: [url for url in asked if url.startswith("file:") is False] for page, asked in said_for_page.items()
    }
    loaded = [len(asked) for asked in said_for_page.values()]
    for context in opened:
        context.close()
    assert said == []
    assert not any(requests.values())
    assert set(loaded) == {1}  # the page itself


def shown_clauses(page):
    return page.eval_on_selector_all(".matrix tbody tr:not([hidden])", "rows => rows.map(row => row.dataset.clause)")


def check(page, name, value):
    page.check(f"#filters input[name={name}][value='{value}']")


def overflow(page):
    """Give by how many pixels the page is wider than its window."""
    return page.evaluate("document.documentElement.scrollWidth - innerWidth")


# -- answers, matrix, clauses


def test_answers_come_first_and_lead_to_their_record(show):
    page = show(few)
    assert page.locator("main section").first.get_attribute("id") == "answers"
    cell = (
        page.locator("#answers .answers").first.locator("tbody tr").nth(3).locator("td").nth(2)
    )  # unsupported lengths
    assert cell.inner_text().split() == ["0/2", "✗", "violated"]
    cell.locator("a").click()
    shown = page.locator("#GRID-3 .record")
    assert shown.inner_text().split("\n")[:4] == ["case", "GRID-3:b", "launcher", "triton:other"]  # the smaller program
    assert "print('GRID-3', 'b')" in shown.inner_text()
    assert page.evaluate("document.activeElement.className") == "record"


def test_each_cell_of_the_matrix_has_a_sign_a_colour_a_count_and_a_name(show):
    page = show(few)
    rows = {row.locator("th").inner_text(): row for row in page.locator(".matrix tbody tr").all()}
    assert list(rows) == ["GRID-3", "GRID-4", "STREAM-1"]
    own, third, other = (cell.inner_text().split() for cell in rows["GRID-3"].locator("td").all())
    assert (own, third, other) == (["2/2", "✓", "pass"], ["none", "-", "unsupported"], ["0/2", "✗", "violated"])
    colours = page.eval_on_selector_all(
        ".matrix tbody tr:first-child td", "cells => cells.map(cell => getComputedStyle(cell).backgroundColor)"
    )
    assert len(set(colours)) == 3


def test_a_click_on_the_matrix_opens_the_clause(show):
    page = show(few)
    page.locator(".matrix tbody th a", has_text="GRID-4").click()
    page.locator("#GRID-4[open]").wait_for()
    text = page.locator("#GRID-4").inner_text()
    clause = model.CLAUSES["GRID-4"]
    assert clause.sentence in text
    assert clause.why in text
    assert "Each program counts at its own place and writes its coordinates." in text  # the plan of its cases
    assert page.url.endswith("#GRID-4")
    page.locator("#STREAM-1 > summary").click()
    page.locator("#STREAM-1 .seen").wait_for()
    assert "it cannot" in page.locator("#STREAM-1").inner_text()


def test_the_smallest_program_that_shows_a_violation_is_copied(show):
    page = show(few)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("#GRID-3 > summary").click()
    shown = page.locator("#GRID-3 > .program").first
    assert shown.locator("code").inner_text() == "print('GRID-3', 'b')"
    shown.locator(".copy").click()
    shown.get_by_text("Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == "print('GRID-3', 'b')"


def test_every_case_is_rendered_when_it_is_asked_for(show):
    page = show(few)
    page.locator("#GRID-3 > summary").click()
    assert page.locator(".of-cases").count() == 0
    page.locator("#GRID-3 .all > summary").click()
    page.locator(".of-cases").wait_for()
    assert page.locator(".of-cases tbody tr").count() == 2
    page.get_by_role("button", name="GRID-3:b, third:party: unsupported").click()
    assert "it cannot" in page.locator(".record").inner_text()
    page.get_by_role("button", name="GRID-3:b, third:party: unsupported").click()
    assert page.locator(".record").count() == 0


def test_what_was_not_run_and_how_to_repeat_it_are_told(show):
    page = show(few)
    assert page.locator("#not-run tbody tr").all_inner_texts() == [
        "it cannot\t6\tGRID-3, GRID-4, STREAM-1\tthird:party"
    ]
    assert page.locator("#launchers .commands code").all_inner_texts() == ["gridpact verify"]


# -- filters and the address


def test_filters_of_family_verdict_and_subject_narrow_the_page(show):
    page = show(few)
    check(page, "family", "GRID")
    assert shown_clauses(page) == ["GRID-3", "GRID-4"]
    assert page.locator("#STREAM-1").is_hidden()
    check(page, "verdict", "violated")
    assert shown_clauses(page) == ["GRID-3"]
    assert page.locator("#found").inner_text() == "1 of 3 clauses"
    page.locator("#filters summary").click()
    check(page, "subject", "gridpact:own")
    assert shown_clauses(page) == []
    assert page.locator("#none").is_visible()
    assert page.locator(".matrix thead th:visible").all_inner_texts() == ["clause", "gridpact:\nown"]
    page.get_by_role("button", name="Show all").click()
    page.get_by_text("3 of 3 clauses").wait_for()
    assert shown_clauses(page) == ["GRID-3", "GRID-4", "STREAM-1"]


def test_filters_stand_in_the_address_and_come_from_it(show):
    page = show(few)
    check(page, "family", "STREAM")
    check(page, "verdict", "pass")
    assert page.url.endswith("#?family=STREAM&verdict=pass")
    again = show(few, "#GRID-3?verdict=violated&subject=triton:other")
    assert shown_clauses(again) == ["GRID-3"]
    assert again.locator("#chosen").inner_text() == "1 of 3"
    again.locator("#GRID-3[open]").wait_for()
    again = show(few, "#STREAM-1?family=GRID")  # a link leads there, whatever the filters say
    again.locator("#STREAM-1 .seen").wait_for()


@pytest.mark.parametrize(
    "anchor",
    ["#nowhere", "#GRID-3--9?case=none", "#%3Cscript%3E?family=%22%3E", "#?case=a&case=b", "#%E0%A4?verdict=%"],
)
def test_an_address_of_nothing_is_harmless(show, anchor):
    page = show(few, anchor)
    assert page.locator("#found").inner_text().endswith("3 clauses")


# -- keyboard


def test_the_page_is_used_by_keyboard_alone(show):
    page = show(few)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.locator(".matrix tbody th a").first.focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "ArrowUp", "ArrowRight"):
        page.keyboard.press(key)
    assert page.evaluate("document.activeElement.getAttribute('href')") == "#GRID-3--2"
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Enter")
    page.locator("#GRID-3--2:focus").wait_for()
    page.evaluate(
        "new Promise(done => requestAnimationFrame(() => setTimeout(done)))"
    )  # the page has followed the link
    page.locator("#GRID-3 .all > summary").press("Enter")
    page.locator(".of-cases").wait_for()
    for _ in range(3):  # a table that scrolls is a stop of its own, once it is laid out
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.matches('.of-cases button')"):
            break
    assert page.evaluate("document.activeElement.matches('.of-cases button')")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert "third:party" in page.locator(".record").inner_text()


def test_a_table_is_one_stop_of_the_tab_key(show):
    page = show(many)
    for table in page.locator(".grid").all():
        assert table.locator("a[tabindex='0']").count() == 1


# -- widths, light and dark


@pytest.mark.parametrize("width", [400, 1600])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_and_can_be_read(show, width, scheme):
    page = show(few, "#GRID-3", width=width, scheme=scheme)
    page.locator("#GRID-3 .all > summary").click()
    page.locator(".of-cases").wait_for()
    assert overflow(page) <= 0
    ratios = page.evaluate(CONTRAST)
    assert len(ratios) > 50
    assert min(ratios.values()) >= 4.5, sorted(ratios.items(), key=lambda item: item[1])[:3]


CONTRAST = """() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (colour) => rgba(colour).slice(0, 3).map((part) => part / 255)
    .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      if (rgba(colour)[3] === 255) return colour;
    }
    return "white";
  };
  const found = {};
  document.querySelectorAll("body *").forEach((element, at) => {
    const hasText = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!hasText || !element.checkVisibility() || element.closest(".unseen, script, input")) return;
    const [one, other] = [getComputedStyle(element).color, behind(element)].map(light);
    found[`${at} ${element.tagName}.${element.className} ${element.textContent.slice(0, 20)}`] =
      (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
  });
  return found;
}"""


def test_light_and_dark_differ(show):
    colours = [
        show(few, scheme=scheme).evaluate("getComputedStyle(document.body).backgroundColor")
        for scheme in ("light", "dark")
    ]
    assert len(set(colours)) == 2


@pytest.mark.parametrize("width", [400, 1600])
def test_the_head_and_the_first_column_stay_with_20_subjects(show, width):
    page = show(many, "#matrix", width=width)
    assert overflow(page) <= 0
    table = page.locator("#matrix .wide")
    table.evaluate("box => box.scrollTo(500, 400)")
    box, head = table.bounding_box(), page.locator("#matrix thead th").first.bounding_box()
    assert abs(head["x"] - box["x"]) < 3
    assert abs(head["y"] - box["y"]) < 3
    row = page.locator("#matrix tbody th").nth(30).bounding_box()
    assert abs(row["x"] - box["x"]) < 3


def test_20_subjects_60_clauses_and_5000_records_load_and_filter(show):
    page = show(many)
    assert page.locator(".matrix tbody tr").count() == 60
    assert page.locator(".matrix tbody td").count() == 1200
    assert "5,000 cases" in page.locator("header").inner_text()
    check(page, "family", "HOOK")
    assert len(shown_clauses(page)) == 30
    page.locator("#filters summary").click()
    for at in (1, 2, 3):
        check(page, "subject", f"somebody:launcher:{at}")
    assert page.locator(".matrix tbody tr:not([hidden])").first.locator("td:visible").count() == 3
    assert page.locator(".of-cases").count() == 0
    last = next(it.case for it in many() if (it.clause, it.subject) == ("HOOK-30", "somebody:launcher:7"))
    at = page.evaluate("data.subjects.indexOf('somebody:launcher:7')")
    again = show(many, f"#HOOK-30--{at}?case={quote(last)}")
    assert last in again.locator(".record").inner_text()


# -- hostile evidence


def test_hostile_evidence_shows_as_text_and_never_runs(show):
    page = show(hostile, width=1600)
    for clause in page.locator(".clause").all():
        clause.locator("> summary").click()
        clause.locator(".all > summary").click()
        clause.locator(".of-cases").wait_for()
    for button in page.locator("button[data-record]").all():
        button.click()
    assert page.evaluate("window.executed") is None
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2  # the records, and the page's own
    text = page.locator("body").inner_text()
    for hostile_text in HOSTILE[:4]:
        assert hostile_text in text
    assert "␛[31mred␛[0m ␀" in text
    assert "⟨RIGHT-TO-LEFT OVERRIDE⟩gnp.exe" in text
    assert "⟨LINE SEPARATOR⟩ ⟨PARAGRAPH SEPARATOR⟩ ⟨U+D800⟩" in text
    assert "\u202e" not in page.content()
    assert overflow(page) <= 0


def test_a_script_that_got_in_would_not_run(show):
    page = show(few)
    page.evaluate(
        """() => { const script = document.createElement("script"); script.textContent = "window.executed = 1";
        document.body.append(script); }"""
    )
    assert page.evaluate("window.executed") is None
    assert "Content Security Policy" in show.said.pop()
