"""The board, in a headless Chromium. Without one on this machine these tests are skipped.

SUME_SCREENSHOTS=folder keeps pictures of every state that is tested.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BROWSER = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)

needs_browser = pytest.mark.skipif(
    BROWSER is None, reason="no Chromium on this machine: the board was NOT tried in a browser"
)


def test_the_page_brings_everything_with_it() -> None:
    page = (ROOT / "functions" / "api" / "board.html").read_text(encoding="utf-8")
    assert "//" not in page.replace("https?:\\/\\/", "").split("<script>")[0]
    for outside in (
        "http://",
        "https://",
        " src=",
        "url(",
        "@import",
        "import(",
        "innerHTML",
        " style=",
    ):
        assert outside not in page, outside


def test_the_policy_allows_the_page_and_nothing_else(call: Any) -> None:
    answer = call("GET", "/board")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(
        part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    for directive in ("script-src", "style-src"):
        assert policy[directive].startswith("'sha256-")
        assert "unsafe" not in policy[directive]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # The sandbox needs rights that root in a container does not have; only our page is read.
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_board(browser: Any, url: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    """`open_board(scheme=…, width=…)` gives the page once its figures are there."""
    contexts, troubles = [], []

    def open_board(scheme: str = "light", width: int = 1280, height: int = 860) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda said: said.type == "error" and troubles.append(said.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.goto(f"{url}/board")
        page.wait_for_selector("#working li")
        return page

    yield open_board
    if folder := os.environ.get("SUME_SCREENSHOTS"):
        for number, context in enumerate(contexts):
            name = f"{request.node.name}-{number}.png".replace("/", "_")
            context.pages[0].screenshot(path=str(Path(folder) / name))
    for context in contexts:
        context.close()
    expected = getattr(request.node, "expected_troubles", 0)
    assert len(troubles) <= expected, troubles


def wait_for(page: Any, selector: str, text: str) -> None:
    page.wait_for_selector(f"{selector}:has-text({text!r})")


@pytest.fixture
def busy(database: Any) -> Any:
    """Six rows: waiting, in flight, two done, failed at Sume, failed before Sume."""
    database.execute("set session_replication_role = replica")
    database.execute(
        "insert into render_jobs (id, prompt, reference, status, sume_job_id, idempotency_key,"
        " error_code) values"
        " (1, '<b>bold</b> & bolder', 'order-1', 'submitted', 'job_1', 'k1', null),"
        " (2, 'b', null, 'submitted', 'job_2', 'k2', null),"
        " (3, 'c', 'order-3', 'submitted', 'job_3', 'k3', null),"
        " (4, 'd', 'order-4', 'failed', null, 'k4', 'attempts_exhausted'),"
        " (5, 'e', null, 'submitted', 'job_5', 'k5', null),"
        " (6, 'f', null, 'pending', null, null, null)"
    )
    database.execute(
        "insert into gen_job (job_id, idempotency_key, render_job_id, status, error_code, result)"
        " values ('job_1', 'k1', 1, 'completed', null, '{\"artifacts\": [{\"url\":"
        ' "https://media.example/a.png", "content_type": "image/png"}, {"url":'
        " \"javascript:alert(1)\"}]}'), ('job_2', 'k2', 2, 'completed', null, null),"
        " ('job_3', 'k3', 3, 'failed', '<i>nsfw</i>', null),"
        " ('job_5', 'k5', 5, 'processing', null, null)"
    )
    database.execute(
        "insert into follow_up (job_id, kind, render_job_id) values ('job_1', 'job.completed', 1),"
        " ('job_2', 'job.completed', 2), ('job_3', 'job.failed', 3)"
    )
    database.execute(
        "insert into job_history (render_job_id, machine, job_id, by, from_status, to_status)"
        " values (3, 'submission', null, 'submit', 'pending', 'submitting'),"
        " (3, 'generation', 'job_3', 'webhook', 'queued', 'failed')"
    )
    database.execute("set session_replication_role = origin")
    database.execute("select setval('render_jobs_id_seq', 6)")
    return database


@needs_browser
def test_an_empty_board_says_how_to_begin(open_board: Any) -> None:
    page = open_board()
    assert page.inner_text("#freshness") == "Live"
    assert "Insert a row" in page.inner_text("#working")
    assert page.inner_text("#attention") == "Nothing needs a person."
    assert [page.inner_text(f"#{name}-count") for name in ("working", "done", "attention")] == [
        "0"
    ] * 3


@needs_browser
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 320)])
def test_a_busy_board(open_board: Any, busy: Any, scheme: str, width: int) -> None:
    page = open_board(scheme, width)
    assert [page.inner_text(f"#{name}-count") for name in ("working", "done", "attention")] == [
        "2"
    ] * 3
    assert page.inner_text("#stages") == "1 waiting · 0 being sent · 1 at Sume"
    attention = page.inner_text("#attention")
    assert "All attempts to send it failed." in attention
    assert "(<i>nsfw</i>)" in attention
    # Nothing is wider than the screen, and the ground follows the scheme.
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (int(ground.removeprefix("rgb(").split(",")[0]) < 60) is (scheme == "dark")


@needs_browser
def test_it_stays_live_and_says_when_it_is_not(
    open_board: Any, busy: Any, request: pytest.FixtureRequest
) -> None:
    page = open_board()
    busy.execute(
        "update pace_gate set closed_until = now() + interval '10 minutes', closures = 1,"
        " reason = 'insufficient_credits'"
    )
    wait_for(page, "#stops", "Sending and reading are stopped; the next try is in 10 min.")
    assert "credits" in page.inner_text("#stops")
    assert page.inner_text("#gates") == "closed"
    busy.execute("update pace_gate set closed_until = null, reason = null where name = 'reads'")
    wait_for(page, "#gates", "sending closed")
    busy.execute("update pace_gate set closed_until = now() where name = 'writes'")
    wait_for(page, "#stops", "Sending is being tried with one request.")
    busy.insert_many(3)
    wait_for(page, "#working-count", "5")
    # Chromium itself logs the failed requests.
    request.node.expected_troubles = 10
    page.context.set_offline(True)
    wait_for(page, "#freshness", "Not up to date since")
    page.context.set_offline(False)
    wait_for(page, "#freshness", "Live")


@needs_browser
def test_a_job_by_mouse_by_keyboard_and_by_search(
    open_board: Any, busy: Any, request: pytest.FixtureRequest
) -> None:
    # Chromium itself logs the answers that are 404, two for the job that is not there.
    request.node.expected_troubles = 2
    page = open_board()
    page.click("#attention .job:has-text('order-3')")
    page.wait_for_selector("dialog[open] .line")
    assert page.inner_text("#detail-title") == "order-3 · #3 · needs attention"
    line = page.inner_text(".line")
    assert "Row: pending → submitting (by submit)" in line
    assert "Job at Sume: queued → failed (by a webhook)" in line
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog[open]", state="detached")
    # From the list the keyboard goes on where it was, also after the list was written anew.
    page.focus("#done .job[data-id='1']")
    page.wait_for_timeout(2500)
    assert page.evaluate("document.activeElement.dataset.id") == "1"
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open] a")
    # What comes from outside is text, and only web addresses become links.
    assert page.eval_on_selector_all("dialog a", "links => links.map(link => link.href)") == [
        "https://media.example/a.png"
    ]
    assert page.inner_text("dialog .facts dd >> nth=0") == "<b>bold</b> & bolder"
    page.click("#close")
    page.keyboard.press("/")
    for wanted, title in (
        ("order-4", "order-4 · #4 · needs attention"),
        ("#6", "#6 · working"),
        ("nobody's", "nobody's"),
        ("999", "#999"),
    ):
        page.fill("#wanted", wanted)
        page.press("#wanted", "Enter")
        wait_for(page, "#detail-title", title)
        page.click("#close")


@needs_browser
def test_who_may_not_see_the_support_route_sees_the_customers_view(
    open_board: Any, busy: Any, request: pytest.FixtureRequest
) -> None:
    request.node.expected_troubles = 1
    page = open_board()
    page.route(
        "**/support/**", lambda route: route.fulfill(status=403, json={"message": "Forbidden"})
    )
    page.click("#attention .job:has-text('order-3')")
    page.wait_for_selector("dialog[open] .nothing")
    told = page.inner_text("dialog")
    assert "This generation did not succeed" in told
    assert "nsfw" not in told


@needs_browser
def test_everything_has_a_name_for_a_screen_reader(open_board: Any, busy: Any) -> None:
    page = open_board()
    nameless = page.evaluate(
        "[...document.querySelectorAll('button, input, dialog, section')].filter(each =>"
        " !(each.textContent.trim() || each.labels?.length || each.hasAttribute('aria-label')"
        " || each.hasAttribute('aria-labelledby'))).map(each => each.outerHTML)"
    )
    assert nameless == []
    assert page.evaluate("document.documentElement.lang") == "en"
    assert page.eval_on_selector_all("h1, h2", "all => all.map(each => each.textContent)")[:4] == [
        "Sume jobs",
        "Working",
        "Done",
        "Needs attention",
    ]
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "To the jobs"
