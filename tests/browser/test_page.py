"""The page in a real Chromium, before a real feed: what a person would see, in time."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.browser.conftest import kill

if TYPE_CHECKING:
    from tests.browser.conftest import Page, Running


pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def opened(page: Page, running: Running) -> None:
    """Every story begins with the page of a healthy feed."""
    page.driver.get(running.web["address"])
    page.until_text("#verdict-word", "Healthy")


def figure(page: Page, name: str) -> str:
    return page.text(f"[data-figure={name}] dd:not(.sub)")


def test_rates_move_without_a_reload_and_without_any_other_address(
    page: Page, running: Running
) -> None:
    page.driver.execute_script("window.sameDocument = true")
    page.until(lambda: re.match(r"[1-9]", figure(page, "throughput")) is not None, "a rate")
    rates, epochs = set(), set()

    def has_moved() -> bool:
        rates.add(figure(page, "throughput"))
        epochs.add(figure(page, "epoch"))
        return len(rates) > 2 and len(epochs) > 2

    page.until(has_moved, "rates and epochs that change")
    assert page.driver.execute_script("return window.sameDocument")
    assert page.driver.current_url == f"{running.web['base']}/"
    asked = page.driver.execute_script(
        "return performance.getEntriesByType('resource').map((entry) => entry.name)"
    )
    assert len(asked) > 8
    assert all(address.startswith(running.web["base"]) for address in asked)
    widths = page.driver.execute_script(
        "return [...document.querySelectorAll('.flow-link')].map((one) => one.style.strokeWidth)"
    )
    assert len(widths) >= 3 + 4 + 2  # journals, two Slices to two Queues, two Queues
    assert len(set(widths)) > 1
    assert len(page.driver.find_elements(By.CSS_SELECTOR, "#plots canvas")) == 4
    for theme, width in (("light", 1440), ("dark", 1440), ("light", 400)):
        page.picture(f"healthy-{theme}-{width}", width, theme=theme)
        assert not page.driver.execute_script(
            "return document.documentElement.scrollWidth > innerWidth"
        )
    page.size(1440, 1000)
    assert page.complaints() == []


def test_a_killed_member_is_told_at_once_and_then_that_it_recovered(
    page: Page, running: Running
) -> None:
    victim = running.state()["members"][1]
    number = victim["member"]
    kill(victim["process"])
    said = f"member {number} was killed by SIGKILL"
    page.until_text("#explanation", said)
    page.picture("killed")
    page.until_text("#verdict-word", "Healthy")
    page.until_text("#restarts tbody", said)
    page.until(
        lambda: (
            re.search(r"\d+(\.\d)? m?s$", page.text("#restarts tbody tr td:last-child")) is not None
        ),
        "how long the recovery took",
    )
    page.until_text("#told", "Healthy")  # a screen reader hears of it, too
    before = running.documents()
    page.until(lambda: running.documents() > before, "documents that go on")
    assert page.complaints() == []


def test_an_open_transaction_is_named_and_aborted_by_keyboard_alone(
    page: Page, running: Running
) -> None:
    producer = running.producer("open")
    row = f"#transactions tr[data-key^='{producer.id}']"
    page.until(lambda: re.search(r"[1-9]\d* s", page.text(row)) is not None, "it, with its age")
    for words in ("orders/region=eu/000", "orders/region=us/000"):
        page.until_text(row, words)
    pattern = (
        rf"Producer {producer.id} has had a transaction open for \d+(\.\d+)? s in journals "
        r"orders/region=(eu|us)/000 and orders/region=(eu|us)/000: 50 rows are stored"
    )
    page.until(lambda: re.search(pattern, page.text("#explanation")) is not None, pattern)
    assert re.search(pattern, running.explain())

    tab_to(page, f"{row} button")
    assert page.driver.switch_to.active_element.accessible_name == (
        f"Abort the transaction of producer {producer.id}"
    )
    press(page, Keys.ENTER)
    assert page.find("#abort").get_dom_attribute("open") is not None
    assert page.driver.switch_to.active_element.get_attribute("id") == "abort-typed"
    words = page.text("#abort-words")
    assert producer.id in words
    assert "50 rows" in words
    page.picture("abort")
    assert not page.find("#abort-yes").is_enabled()
    press(page, Keys.ESCAPE)
    assert page.find("#abort").get_dom_attribute("open") is None
    assert running.store.aborts() == []

    tab_to(page, f"{row} button")
    press(page, Keys.ENTER, *"abort", Keys.ENTER)
    page.until(lambda: page.text(row) == "", "that it is over")
    page.until_text("#aborts tbody", producer.id)
    page.until_text("#aborts tbody", "rolled back")
    assert [str(one.producer) for one in running.store.aborts()] == [producer.id]
    ended = producer.go_on()
    assert ended.startswith("CommitFailedError")
    assert "was aborted by" in ended
    assert page.complaints() == []


def test_a_commit_that_hangs_holds_up_and_moves_on_when_it_is_aborted(
    page: Page, running: Running
) -> None:
    producer = running.producer("half")
    page.until_text("#verdict-word", "Stuck")
    pattern = (
        rf"waits since \d+(\.\d+)? s for the commit of producer {producer.id} in journal "
        r"orders/region=us/000, which journal orders/region=eu/000 hints at"
    )
    page.until(lambda: re.search(pattern, page.text("#explanation")) is not None, pattern)
    assert re.search(pattern, running.explain())
    row = f"#transactions tr[data-key^='{producer.id}']"
    page.until_text(row, "holds up")
    page.picture("stuck", theme="dark")
    before = held_documents(page, running)
    page.find(f"{row} button").click()
    page.find("#abort-typed").send_keys("abort")
    page.find("#abort-yes").click()
    page.until_text("#aborts tbody", producer.id)
    assert "committed" in page.text(f"#aborts tr[data-key='{producer.id}']")
    page.until_text("#verdict-word", "Healthy")
    page.until(lambda: running.documents() > before, "documents that go on")
    assert producer.go_on() == "committed"
    assert page.complaints() == []


def held_documents(page: Page, running: Running) -> int:
    """How many were consumed, once no more come although queues grow."""
    while True:
        before, stored = running.documents(), running.stored()
        page.until(lambda stored=stored: running.stored() > stored + 1_000, "rows that are stored")  # type: ignore[misc]
        if running.documents() == before:
            return before


def test_detail_by_keyboard_and_tables_behind_the_plots(page: Page, running: Running) -> None:
    tab_to(page, ".flow-node[aria-label^='Queue 1']")
    press(page, Keys.ENTER)
    assert page.text("#detail-title") == "Queue 1"
    assert "Rows stored" in page.text("#flow-detail")
    tab_to(page, "#epochs summary")
    press(page, Keys.ENTER)
    page.until(
        lambda: len(page.find("#epochs-table").find_elements(By.CSS_SELECTOR, "tbody tr")) > 3,
        "rows",
    )
    assert "committed" in page.find("#epochs-table").text
    for tag, names in (("main", 1), ("header", 1), ("nav", 1), ("footer", 1), ("h1", 1)):
        assert len(page.driver.find_elements(By.TAG_NAME, tag)) == names
    for button in page.driver.find_elements(By.CSS_SELECTOR, "button, summary, [role=button]"):
        if button.is_displayed():
            assert button.accessible_name
    for region in page.driver.find_elements(
        By.CSS_SELECTOR, "section, [role=region], [role=img], table"
    ):
        if region.is_displayed() and region.tag_name != "table":
            assert region.accessible_name, region.get_attribute("outerHTML")
    assert page.complaints() == []


def test_two_of_one_key_have_a_row_each_and_none_stays(page: Page) -> None:
    counts = page.driver.execute_async_script(
        """
        const [done] = arguments;
        import("/assets/dom.js").then(({ fillRows }) => {
          const body = document.createElement("tbody");
          const fill = (...items) => {
            fillRows(body, items, () => "one", (item) => [item]);
            return [...body.rows].map((row) => row.textContent).join(" ");
          };
          const first = fill("a", "b", "c");
          const kept = body.rows[1];
          done([first, fill("d", "e"), kept === body.rows[1], fill("f"), fill()]);
        }, (error) => done([String(error)]));
        """
    )
    assert counts == ["a b c", "d e", True, "f", ""]


def test_a_wrong_token_gets_one_sentence(page: Page, running: Running) -> None:
    page.driver.delete_all_cookies()
    page.driver.get(f"{running.web['base']}/?token=wrong")
    assert "The token is missing or wrong" in page.text("body")
    assert "orders" not in page.driver.page_source
    page.driver.get(running.web["base"])
    assert "The token is missing or wrong" in page.text("body")
    page.complaints()


def test_a_page_whose_server_ends_says_so(page: Page, running: Running) -> None:
    other = running.serve()
    page.driver.get(other["address"])
    page.until_text("#verdict-word", "Healthy")
    other["process"].terminate()  # type: ignore[attr-defined]
    page.until_text("#verdict-word", "No connection")
    page.until_text("#explanation", "has lost the process that serves it")
    page.complaints()


def tab_to(page: Page, selector: str) -> None:
    """Presses Tab until that part has the focus."""
    for _ in range(150):
        press(page, Keys.TAB)
        if page.driver.execute_script(
            "return document.activeElement.matches(arguments[0])", selector
        ):
            return
    raise AssertionError(f"Tab does not come to {selector}")


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.driver.switch_to.active_element.send_keys(key)
