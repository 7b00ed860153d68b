"""The dashboard in headless Chromium, with a real coordinator, workers and jobs behind it."""
import os
import signal

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from common import wait_until
from swarm import swarm  # noqa: F401 (a fixture)

SHOTS = os.environ.get("SKERRY_SHOTS")  # a folder that keeps the screenshots
SECONDS = 30


class Page:
    def __init__(self, driver, swarm):  # noqa: F811
        self.driver = driver
        self.swarm = swarm
        self.expected = ()  # console errors that the test provokes itself

    def open(self, path="/", log_in=True):
        if log_in:
            self.driver.get(f"{self.swarm.url}/?token={self.swarm.token}")
        self.driver.get(self.swarm.url + path)

    def js(self, code, *args):
        return self.driver.execute_script(code, *args)

    def text(self, css):
        return self.js("return (document.querySelector(arguments[0]) || {}).textContent || ''", css)

    def visible(self, css):
        return self.js("const e = document.querySelector(arguments[0]); return !!e && e.getClientRects().length > 0", css)

    def count(self, css):
        return self.js("return document.querySelectorAll(arguments[0]).length", css)

    def wait(self, done, what, seconds=SECONDS):
        return wait_until(done, seconds, what)

    def wait_text(self, css, words, seconds=SECONDS):
        self.wait(lambda: words in self.text(css), f"{words!r} in {css}, which has {self.text(css)!r}", seconds)

    def look(self, name, width=1360, scheme="light"):
        """The whole page in a picture; it must not scroll sideways."""
        cdp = self.driver.execute_cdp_cmd
        cdp("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        cdp("Emulation.setDeviceMetricsOverride", size)
        assert self.js("return document.documentElement.scrollWidth") <= width
        size["height"] = self.js("return document.documentElement.scrollHeight")
        cdp("Emulation.setDeviceMetricsOverride", size)
        picture = self.driver.get_screenshot_as_png()
        assert len(picture) > 10000
        if SHOTS:
            os.makedirs(SHOTS, exist_ok=True)
            with open(os.path.join(SHOTS, f"{name}.png"), "wb") as f:
                f.write(picture)

    def errors(self):
        return [e["message"] for e in self.driver.get_log("browser")
                if e["level"] in ("SEVERE", "WARNING") and not any(x in e["message"] for x in self.expected)]


@pytest.fixture(scope="module")
def chromium():
    options = Options()
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                 "--ignore-certificate-errors", "--window-size=1360,900", "--lang=en"):
        options.add_argument(flag)
    options.binary_location = "/usr/bin/chromium"
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(service=Service("/usr/bin/chromedriver"), options=options)
    driver.set_page_load_timeout(30)
    yield driver
    driver.quit()


@pytest.fixture
def page(chromium, swarm):  # noqa: F811
    chromium.get_log("browser")
    p = Page(chromium, swarm)
    yield p
    errors = p.errors()
    chromium.get("about:blank")
    chromium.delete_all_cookies()
    assert not errors, "\n".join(errors)


# Text whose contrast to what lies behind it is below WCAG AA.
CONTRAST = """
function rgb(s) { const m = s.match(/[\\d.]+/g).map(Number); return m.length < 4 ? [...m, 1] : m; }
function behind(e) {
  for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c[3] > 0.9) return c; }
  return matchMedia('(prefers-color-scheme: dark)').matches ? [0, 0, 0] : [255, 255, 255];
}
function lum(c) {
  const [r, g, b] = c.map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
const bad = [];
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walk.nextNode()) {
  const e = walk.currentNode.parentElement;
  if (!walk.currentNode.textContent.trim() || !e.getClientRects().length || e.closest('svg, .visually-hidden, .skip, .away, option')) continue;
  const a = lum(rgb(getComputedStyle(e).color)), b = lum(behind(e));
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) bad.push(`${ratio.toFixed(2)} ${e.tagName}.${e.className}: ${walk.currentNode.textContent.trim().slice(0, 30)}`);
}
return bad;
"""

UNNAMED = """
return [...document.querySelectorAll('input, select, button, img, [role=progressbar], [role=img], section')]
  .filter((e) => e.getClientRects().length)
  .filter((e) => !(e.getAttribute('aria-label') || e.getAttribute('aria-labelledby') || e.labels?.length || e.textContent.trim()
    || e.hasAttribute('alt')))
  .map((e) => e.outerHTML.slice(0, 120));
"""


def test_login_form(page):
    page.expected = ("401",)
    page.open(log_in=False)
    assert page.visible("form input[name=token]")
    box = page.driver.find_element(By.NAME, "token")
    box.send_keys("not it" + Keys.ENTER)
    page.wait(lambda: page.visible(".denied"), "the refusal")
    page.look("login", 700, "dark")
    box = page.driver.find_element(By.NAME, "token")
    box.send_keys(page.swarm.token + Keys.ENTER)
    page.wait(lambda: page.visible("#welcome"), "the page")
    assert "token" not in page.driver.current_url
    assert page.js("return document.cookie") == "", "a script can read the cookie"


def test_empty_page_tells_what_to_do(page):
    page.open()
    page.wait(lambda: page.visible("#welcome"), "the welcome")
    page.wait(lambda: page.js("return document.querySelector('#link').dataset.state") == "live", "the live connection")
    assert "skerry submit job.yaml" in page.text("#welcome")
    assert page.swarm.worker_token not in page.driver.page_source, "the secret is shown unasked"
    page.driver.find_element(By.CSS_SELECTOR, "#welcome .command button").click()
    page.wait(lambda: page.text("#welcome .command button") in ("Copied", "Select"), "the copy")
    page.look("empty")
    page.look("empty-dark", scheme="dark")
    page.swarm.worker("lonely")
    page.wait_text("#workers", "lonely")


def test_a_job_from_start_to_end(page):
    page.swarm.worker("isle-a")
    page.swarm.worker("isle-b")
    job = page.swarm.submit(rounds=6, steps=8, sample_every=2, eval_every=2)
    page.open()
    page.wait(lambda: page.visible("#hero"), "the job")
    assert page.text("#job-name") == "tiny"
    page.wait(lambda: page.count("#workers tr") == 2, "two workers")
    page.swarm.wait_job(job, "done")
    page.wait_text("#job-state", "done")
    page.wait_text("#bar-left", "6 of 6 rounds")
    assert page.js("return document.querySelector('#bar').getAttribute('aria-valuenow')") == "6"
    page.wait(lambda: page.count("#chart .replica") == 2 and page.count("#chart .eval-dot") == 3, "the curves")
    assert "L" in page.js("return document.querySelector('#chart .mean').getAttribute('d')")
    page.wait_text("#ratio", "×")
    assert page.text("#modules td:nth-child(2)") == "6"
    sha = page.swarm.job(job)["modules"][0]["sha256"]
    assert page.text("#modules td:nth-child(3)") == sha[:12]
    epoch = page.swarm.job(job)["epochs"][-1]
    page.wait_text("#epochs", f"Epoch {epoch['epoch'] + 1}")
    page.wait_text("#epochs", f"{epoch['done']} of {epoch['total']}")
    page.wait_text("#waiting", "this job is done")
    assert page.count("#log li") > 3
    samples(page)
    chart(page)
    for scheme in ("light", "dark"):
        page.look(f"job-{scheme}", scheme=scheme)
        assert page.js(CONTRAST) == []
    assert page.js(UNNAMED) == []
    page.look("job-phone", 390)
    page.look("job-phone-dark", 390, "dark")


def samples(page):
    page.wait(lambda: page.js("const i = document.querySelector('#picture'); return i.complete && i.naturalWidth > 16"), "the samples")
    assert page.js("return getComputedStyle(document.querySelector('#picture')).imageRendering") == "pixelated"
    page.wait_text("#caption", "after 6 rounds")
    slider = page.driver.find_element(By.ID, "slider")
    slider.send_keys(Keys.HOME)
    page.wait_text("#caption", "after 2 rounds")
    first = page.js("return document.querySelector('#picture').src")
    slider.send_keys(Keys.END)
    page.wait_text("#caption", "after 6 rounds")
    assert page.js("return document.querySelector('#picture').src") != first
    page.driver.find_element(By.ID, "enlarge").click()
    page.wait(lambda: page.visible("dialog[open] img"), "the enlarged picture")
    page.driver.find_element(By.TAG_NAME, "body").send_keys(Keys.ESCAPE)
    page.wait(lambda: not page.visible("dialog"), "the dialog to close")


def chart(page):
    curve = "return document.querySelector('#chart .mean').getAttribute('d')"
    linear = page.js(curve)
    page.driver.find_element(By.ID, "log-y").click()
    page.wait(lambda: page.js(curve) != linear, "the logarithmic axis")
    page.driver.find_element(By.ID, "log-y").click()
    box = page.driver.find_element(By.ID, "chart")
    webdriver.ActionChains(page.driver).move_to_element(box).perform()
    page.wait_text("#readout", "mean")
    assert all(word in page.text("#readout") for word in ("step", "replica 0", "replica 1", "held-out"))
    page.js("document.querySelector('#chart').focus()")
    box.send_keys(Keys.END)
    page.wait_text("#readout", "step 47")  # steps count from 0
    box.send_keys(Keys.ARROW_LEFT)
    page.wait_text("#readout", "step 46")


def test_a_stopped_worker_is_waited_for(page):
    page.swarm.worker("isle-a")
    page.swarm.worker("isle-b")
    job = page.swarm.submit(rounds=100000, steps=10)
    page.swarm.wait_round(job, 1)
    page.open()
    page.wait(lambda: page.count("#workers tr") == 2, "two workers")
    page.swarm.kill("isle-b", signal.SIGSTOP)

    def countdown():
        return page.js("const li = [...document.querySelectorAll('#waiting li')].find((l) => /isle-b.*not heard of/.test(l.textContent));"
                       " return li ? li.querySelector('time').textContent : ''")

    first = page.wait(countdown, "the panel to name the silent worker")
    assert first.startswith("within "), first
    page.look("waiting", scheme="dark")
    page.wait(lambda: countdown() not in (first, ""), "the countdown to go on")
    page.wait(lambda: page.js("return [...document.querySelectorAll('#workers tr')].some((r) => r.textContent.includes('isle-b')"
                              " && r.textContent.includes('lost'))"), "the worker to be lost", 60)
    assert page.visible("#workers .away")
    page.swarm.kill("isle-b", signal.SIGCONT)
    page.wait(lambda: not page.visible("#workers .away"), "the worker to be back", 60)


def test_the_coordinator_goes_and_comes_back(page):
    page.expected = ("ERR_CONNECTION_REFUSED", "net::ERR_", "Failed to load resource")
    page.swarm.worker("isle-a")
    job = page.swarm.submit(rounds=100000, steps=10, replicas=1)
    page.swarm.wait_round(job, 1)
    page.open()
    page.wait(lambda: page.visible("#hero"), "the job")
    page.swarm.kill("coordinatord", signal.SIGKILL)
    page.wait(lambda: page.visible("#banner"), "the banner")
    assert "does not answer" in page.text("#banner")
    page.wait_text("#banner", "trying again in")
    page.look("gone")
    page.swarm.coordinator()
    page.wait(lambda: not page.visible("#banner"), "the banner to go")
    page.wait(lambda: page.js("return document.querySelector('#link').dataset.state") == "live", "the live connection")
    rounds = page.swarm.job(job)["round"]
    page.wait(lambda: int(page.js("return document.querySelector('#bar').getAttribute('aria-valuenow')")) > rounds, "another round", 60)


def test_without_events_it_polls(page):
    page.expected = ("/v1/events",)
    page.driver.execute_cdp_cmd("Network.enable", {})
    page.driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["*/v1/events"]})
    try:
        page.open()
        page.wait_text("#link-text", "polling")
        page.swarm.worker("late-comer")
        page.wait_text("#workers", "late-comer")
    finally:
        page.driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})


def test_names_are_never_markup(page):
    name = "<img src=x onerror=alert(1)>"
    page.swarm.worker("odd", shown=name)
    page.open()
    page.wait(lambda: page.text("#workers .strong") == name, "the name as it is")
    assert page.count("#workers img") == 0


def test_the_chooser_and_drawing_on_demand(page):
    page.swarm.worker("isle-a")
    first = page.swarm.submit(rounds=1, steps=2, replicas=1)
    page.swarm.wait_job(first, "done")
    second = page.swarm.submit(rounds=1, steps=2, replicas=1)
    page.swarm.wait_job(second, "done")
    page.open()
    page.wait(lambda: page.js("return document.querySelector('#job').value") == str(second), "the newest job")
    page.open(f"/#job={first}")
    page.wait(lambda: page.js("return document.querySelector('#job').value") == str(first), "the chosen job")
    before = len(page.swarm.job(first)["samples"])
    page.driver.find_element(By.ID, "draw").click()
    page.wait_text("#draw", "Task")
    page.wait(lambda: len(page.swarm.job(first)["samples"]) > before, "the new samples")
    page.wait_text("#caption", f"{before + 1} of {before + 1}")


def test_logging_out(page):
    page.open()
    page.wait(lambda: page.visible("#welcome"), "the page")
    page.driver.find_element(By.CSS_SELECTOR, "form[action='/logout'] button").click()
    page.wait(lambda: page.visible("input[name=token]"), "the login form")
