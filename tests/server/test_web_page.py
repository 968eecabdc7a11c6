"""The page at `/`: who gets it, under which policy, and that it works in a real browser."""

import re

import pytest
from litestar.testing import TestClient

from appliance.server.web_page import web_files
from server.browser import CHROMIUM, Browser, open_browser
from server.rig import Rig, make_rig, serve

BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
MARKDOWN = (
    "# Title\n\n<img src=x onerror=alert(1)> & **bold**, `code`, [good](https://example.org/) and "
    "[bad](javascript:alert(1))\n\n```python\nx = 1 < 2\n```\n\n- one\n  - inner\n- two\n\n3. three\n\n"
    "| a | b |\n|---|---|\n| 1 | 2 |\n\n> quoted\n"
)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
# Unhelpful in the tests: a model that is not ready answers 503, a page without a key 401.
EXPECTED = re.compile(r"status of (503|401)")


def complaints(browser: Browser) -> list[str]:
    return [text for text in browser.complaints if not EXPECTED.search(text)]


def test_browsers_get_the_page_and_others_the_line(client: TestClient) -> None:
    page = client.get("/", headers=BROWSER)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["vary"] == "accept"
    assert "<main" in page.text
    for accept in ("*/*", "application/json", ""):
        line = client.get("/", headers={"accept": accept})
        assert (line.text, line.headers["vary"]) == ("Ollama is running", "accept")


def test_every_file_is_served_under_the_strict_policy(client: TestClient) -> None:
    files = web_files()
    assert {"index.html", "app.js", "style.css", "icon.svg"} <= files.keys()
    for name in files:
        answer = client.get(f"/web/{name}")
        assert answer.status_code == 200
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self';")
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        again = client.get(f"/web/{name}", headers={"if-none-match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


def test_no_other_file_is_served(client: TestClient) -> None:
    for path in ("/web/", "/web/nope.js", "/web/..%2fapp.py", "/web/%2e%2e/app.py", "/web/index.html/x"):
        assert client.get(path).status_code in (404, 405)


def test_the_page_asks_nobody_else_and_never_writes_html() -> None:
    for name, file in web_files().items():
        text = file.body.decode()
        assert not re.search(r"(?:src|href|from|import|url)\s*[=(]?\s*[\"']?(?:https?:)?//", text), name
        assert "innerHTML" not in text, name
        assert not re.search(r"<[^>]+ (?:style|on\w+)=", text), name
        imported = re.findall(r"from \"/web/([^\"]+)\"", text)
        assert set(imported) <= web_files().keys()


def test_the_page_is_open_and_what_it_asks_for_is_not(rig: Rig) -> None:
    with rig.client(api_key="secret") as client:
        assert client.get("/", headers=BROWSER).status_code == 200
        assert client.get("/web/app.js").status_code == 200
        for path in ("/v1/models", "/web", "/webs/app.js", "/system/v1/snapshot"):
            assert client.get(path).status_code == 401


@needs_browser
def test_a_chat_in_the_browser() -> None:
    """One browser for the whole tour: starting one takes longer than the rest."""
    with (
        make_rig(is_ready=False, context_length=2048) as rig,
        serve(rig) as server,
        open_browser(server.url) as page,
    ):
        waits_for_the_model(page, rig)
        answers_are_shown_as_markdown(page, rig)
        an_answer_can_be_stopped(page, rig)
        conversations_outlive_the_page(page)
        figures_are_live(page)
        assert complaints(page) == []
        rig.wait_idle()


def waits_for_the_model(page: Browser, rig: Rig) -> None:
    rig.state.enter("loading", "reading weights", progress=0.5)
    page.wait("document.getElementById('phase-detail').textContent == 'reading weights'")
    assert page.run("document.getElementById('phase-progress').value") == 0.5
    rig.state.pool.add(rig.model)
    rig.state.enter("ready")
    page.wait("document.getElementById('phase').hidden")
    page.wait("document.getElementById('model-name').textContent == 'tiny'")


def say(page: Browser, text: str) -> None:
    page.run("document.getElementById('composer-text').focus()")
    page.write(text)
    page.press("Enter", "\r")


def answers_are_shown_as_markdown(page: Browser, rig: Rig) -> None:
    rig.reply(MARKDOWN.encode())
    say(page, "hi <b>there</b>")
    page.wait("document.querySelector('.model .foot')")
    text = "document.querySelector('.model .text')"
    assert page.run(f"{text}.querySelectorAll('img, script, b').length") == 0
    assert page.run("document.querySelector('.bubble').textContent") == "hi <b>there</b>"
    assert page.run(f"{text}.querySelector('strong').textContent") == "bold"
    assert page.run(f"[...{text}.querySelectorAll('a')].map((a) => a.href)") == ["https://example.org/"]
    assert page.run(f"{text}.querySelector('pre code').textContent") == "x = 1 < 2"
    assert page.run(f"{text}.querySelectorAll('ul ul li').length") == 1
    assert page.run(f"{text}.querySelector('ol').start") == 3
    assert page.run(f"{text}.querySelectorAll('td').length") == 2
    assert page.run(f"{text}.querySelector('blockquote').textContent") == "quoted"
    assert "<img src=x" in page.run(f"{text}.textContent")
    assert " tokens" in page.run("document.querySelector('.facts').textContent")


def an_answer_can_be_stopped(page: Browser, rig: Rig) -> None:
    rig.reply(b"on and on " * 20, ends=False)
    rig.runner.step_s = 0.05
    say(page, "go on")
    page.wait("document.querySelectorAll('.model')[1].textContent.includes('on and on')")
    page.press("Escape")
    page.wait(
        "document.querySelectorAll('.model')[1].querySelector('.facts').textContent.includes('stopped')"
    )
    rig.wait_idle()


def conversations_outlive_the_page(page: Browser) -> None:
    page.ask("Page.reload")
    page.wait("document.querySelectorAll('.message').length == 4")
    page.run("document.getElementById('new-chat').click()")
    assert page.run("document.querySelectorAll('.message').length") == 0
    page.run("document.querySelector('#conversations button').click()")
    assert page.run("document.querySelectorAll('.message').length") == 4
    page.run("document.querySelector('#conversations .icon-button').click()")
    page.run("document.querySelector('#ask-dialog [value=yes]').click()")
    page.wait("document.querySelectorAll('#conversations li').length == 0")
    assert page.run("Object.keys(localStorage).filter((key) => key.startsWith('appliance.chat')).length") == 0


def figures_are_live(page: Browser) -> None:
    page.run("if (document.getElementById('live').hidden) document.getElementById('toggle-live').click()")
    page.wait("document.getElementById('figures').textContent.includes('Finished')")


@needs_browser
def test_the_browser_is_asked_for_a_key_and_keeps_it_for_the_session(rig: Rig) -> None:
    with serve(rig, api_key="secret") as server, open_browser(server.url) as page:
        page.resize(360, 640, is_phone=True)
        page.wait("document.getElementById('key-dialog').open")
        page.run("document.getElementById('key').value = 'wrong'")
        page.run("document.querySelector('#key-form .primary').click()")
        page.wait(
            "document.getElementById('key-dialog').open && !document.getElementById('key-wrong').hidden"
        )
        page.run("document.getElementById('key').value = 'secret'")
        page.run("document.querySelector('#key-form .primary').click()")
        page.wait("document.getElementById('model-name').textContent == 'tiny'")
        assert page.run("localStorage.getItem('appliance.key')") is None
        say(page, "hi")
        page.wait("document.querySelector('.model .text').textContent.includes('hello world')")
        assert page.run("document.documentElement.scrollWidth") == 360
        assert complaints(page) == []
