"""The page in a real browser: no error, no request, and everything can be touched."""

import json

import pytest
from tests.report.browser import chromium, screenshot
from tests.report.runs import write_run

from stayfinite.report.html import render_html
from stayfinite.report.model import load_run

pytestmark = pytest.mark.slow
pytest.importorskip("selenium")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser") / "run"
    write_run(folder)
    path = folder / "report.html"
    path.write_text(render_html(load_run(folder)), encoding="utf-8")
    return path


@pytest.fixture(scope="module", params=[1280, 390])
def driver(request, page):
    with chromium(request.param) as driver:
        driver.get("about:blank")
        driver.get_log("performance")  # what the browser itself asked for at its start
        driver.get(page.as_uri())
        yield driver


def plots(driver):
    return {
        p.get_attribute("data-name"): p
        for p in driver.find_elements("css selector", "#curves figure.plot")
    }


def figure(driver, plot, key):
    return float(plots(driver)[plot].get_attribute(f"data-{key}"))


def test_no_error_no_request_nothing_ran_that_was_only_to_be_shown(driver, page):
    assert driver.get_log("browser") == []
    asked = [
        json.loads(entry["message"])["message"]["params"]["request"]["url"]
        for entry in driver.get_log("performance")
        if '"Network.requestWillBeSent"' in entry["message"]
    ]
    assert [u for u in asked if not u.startswith("data:")] == [page.as_uri()]
    assert driver.execute_script("return window.hacked") is None
    assert driver.execute_script("return document.documentElement.dataset.ready") == "1"


def test_every_plot_has_its_points_and_shows_the_nan(driver):
    found = plots(driver)
    assert list(found) == ["loss", "grad_norm", "lr", "scale", "update_ratio", "ms"]
    counts = {name: int(p.get_attribute("data-points")) for name, p in found.items()}
    assert counts["grad_norm"] == counts["lr"] == counts["scale"] == 400
    assert counts["loss"] == 3 * 398, "the loss and its two parts, without the two bad steps"
    assert counts["update_ratio"] == 8 and counts["ms"] == 399
    curve = found["loss"].find_element("css selector", "path.curve").get_attribute("d")
    assert curve.count("L") + curve.count("M") == 398 and curve.count("M") == 3
    assert len(found["loss"].find_elements("css selector", "path.bad")) == 2
    assert found["loss"].get_attribute("data-bad") == "2"


def test_the_page_is_no_wider_than_the_window(driver):
    wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert driver.execute_script(wide) <= 0


def test_dragging_zooms_all_plots_and_double_click_brings_all_back(driver):
    from selenium.webdriver import ActionChains

    svg = plots(driver)["loss"].find_element("css selector", "svg")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", svg)
    width = svg.size["width"]
    actions = ActionChains(driver)
    actions.move_to_element_with_offset(svg, int(-width * 0.1), 0).click_and_hold()
    actions.move_to_element_with_offset(svg, int(width * 0.2), 0).release().perform()
    first, last = figure(driver, "loss", "from"), figure(driver, "loss", "to")
    assert 100 < first < 200 and 220 < last < 330
    assert (figure(driver, "lr", "from"), figure(driver, "lr", "to")) == (first, last)
    assert figure(driver, "lr", "points") < 200
    svg = plots(driver)["loss"].find_element("css selector", "svg")
    ActionChains(driver).double_click(svg).perform()
    assert (figure(driver, "loss", "from"), figure(driver, "loss", "to")) == (0, 399)
    driver.find_element("css selector", "[data-zoom=in]").click()
    assert figure(driver, "scale", "from") == pytest.approx(99.75)
    driver.find_element("css selector", "[data-zoom=out]").click()
    driver.find_element("css selector", "[data-zoom=reset]").click()
    assert figure(driver, "loss", "points") == 3 * 398


def test_hovering_tells_the_step_and_the_value(driver):
    from selenium.webdriver import ActionChains

    svg = plots(driver)["lr"].find_element("css selector", "svg")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", svg)
    ActionChains(driver).move_to_element_with_offset(svg, 40, 0).perform()
    tip = plots(driver)["lr"].find_element("css selector", ".tip").text
    step, value = tip.splitlines()
    number = int(step.removeprefix("step "))
    assert 150 < number < 350
    assert float(value.removeprefix("lr ")) == pytest.approx(0.1 / (1 + number), rel=0.01)


def test_log_and_linear(driver):
    plot = plots(driver)["loss"]
    assert plot.get_attribute("data-log") == "1"
    driver.execute_script("arguments[0].click()", plot.find_element("css selector", ".scale"))
    assert plot.get_attribute("data-log") == "0"
    driver.execute_script("arguments[0].click()", plot.find_element("css selector", ".scale"))


def test_light_and_dark(driver):
    button = driver.find_element("id", "theme")
    driver.execute_script("window.scrollTo(0, 0)")
    color = "return getComputedStyle(document.body).backgroundColor"
    stroke = "return getComputedStyle(document.querySelector('path.curve')).stroke"
    light = driver.execute_script(color), driver.execute_script(stroke)
    button.click()
    dark = driver.execute_script(color), driver.execute_script(stroke)
    assert light[0] != dark[0] and light[1] != dark[1]
    button.click()
    assert (driver.execute_script(color), driver.execute_script(stroke)) == light


def test_marks_lead_to_their_incident(driver):
    plot = plots(driver)["grad_norm"]
    marks = plot.find_elements("css selector", "a.incident-mark")
    assert len(marks) == 2
    dot = marks[1].find_element("css selector", "circle")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", dot)
    dot.click()
    assert driver.current_url.endswith("#step000300-abc0")
    seen = driver.execute_script("return document.querySelector(':target').textContent")
    assert "step 300" in seen
    link = driver.find_element("css selector", "#skips a")
    driver.execute_script("arguments[0].click()", link)
    assert driver.current_url.endswith("#step000150-abc0")


def test_the_diff_can_be_copied(driver):
    button = driver.find_element("css selector", ".copy")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
    driver.execute_script(
        "window.copied = null; navigator.clipboard.writeText = t => {window.copied = t; return Promise.resolve()}"
    )
    button.click()
    text = driver.execute_script("return window.copied")
    assert text.startswith("--- a/") and "\n+    return -torch.log_softmax(p, -1).mean()\n" in text


def test_the_layers(driver):
    heat = driver.find_element("id", "heat")
    assert heat.get_attribute("data-cells") == "16"
    colors = {r.get_attribute("fill") for r in heat.find_elements("css selector", "rect")}
    assert len(colors) >= 3, "a half-precision layer that nears its limit changes its color"
    driver.execute_script(
        "const k = document.getElementById('heat-kind'); k.value = 'grad'; k.dispatchEvent(new Event('change'))"
    )
    assert heat.get_attribute("data-cells") == "16"


def test_printing_is_light_and_keeps_all(driver):
    result = driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert len(result["data"]) > 20_000


def test_a_screenshot_has_more_than_one_color(driver, tmp_path):
    screenshot(driver, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 30_000
