"""The dashboard in headless Chromium, with a real coordinator, workers and jobs behind it."""
import math
import os
import signal
import threading

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

import canned
import test_ddm
from common import HANGS, wait_until, write_job
from openapi import OpenApi
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
        """Takes a picture of the whole page, which must not scroll sideways."""
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
    driver.set_page_load_timeout(HANGS)
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
  .concat([...document.querySelectorAll('[id]')].filter((e) => document.getElementById(e.id) !== e))
  .map((e) => e.outerHTML.slice(0, 120));
"""


# Boxes that scroll, and that no key reaches: browsers differ in what they do with those.
UNREACHED = """
const scrolls = (e) => {
  const s = getComputedStyle(e), all = e.getClientRects().length > 0;
  return all && ((/auto|scroll/.test(s.overflowY) && e.scrollHeight > e.clientHeight + 1) || (/auto|scroll/.test(s.overflowX) && e.scrollWidth > e.clientWidth + 1));
};
return [...document.querySelectorAll('*')]
  .filter((e) => scrolls(e) && e.tabIndex < 0 && !e.querySelector('button:not([tabindex="-1"]), input, select, [tabindex="0"]'))
  .map((e) => e.id || e.className || e.tagName);
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
    assert "skerry new NAME --images DIR" in page.text("#welcome") and "skerry submit NAME.yaml" in page.text("#welcome")
    assert page.swarm.worker_token not in page.driver.page_source, "the secret is shown unasked"
    page.js("""window.said = [];
        new MutationObserver((all) => all.forEach((m) => window.said.push(m.target.textContent)))
          .observe(document.querySelector('#welcome .command button'), {childList: true});""")  # it says so for two seconds only
    page.driver.find_element(By.CSS_SELECTOR, "#welcome .command button").click()
    page.wait(lambda: page.js("return window.said.some((s) => s === 'Copied' || s === 'Select')"), "the copy")
    page.look("empty")
    page.look("empty-dark", scheme="dark")
    page.swarm.worker("lonely")
    page.wait_text("#workers", "lonely")


def test_a_viewer_waits_for_the_first_job(page):
    viewer = page.swarm.skerry("tokens", "--new", "viewer").stdout.strip()
    page.open(f"/?token={viewer}", log_in=False)
    page.wait(lambda: page.visible("#welcome"), "the welcome")
    assert page.count("#welcome-steps li") == 0


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
    assert "ran for" in page.text("#bar-right") and "Running" not in page.text("#stats") and not page.visible("#round-title")
    assert page.text("#job-file") == page.swarm.job(job)["spec"]
    page.driver.find_element(By.CSS_SELECTOR, ".job-file summary").click()
    assert page.js("return document.querySelector('#job-file').checkVisibility()")
    samples(page)
    chart(page)
    for scheme in ("light", "dark"):
        page.look(f"job-{scheme}", scheme=scheme)
        assert page.js(CONTRAST) == []
    assert page.js(UNNAMED) == []
    page.look("job-phone", 360)
    page.look("job-phone-dark", 360, "dark")


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


def test_a_step_of_an_island(page):
    path = write_job(page.swarm.folder, rounds=2, steps=6, replicas=1)
    with open(path, encoding="utf-8") as f:
        text = f.read().replace("train: {", "train: {parallel: pipeline, pipeline: 1f1b, accumulate: 4, ", 1)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    page.swarm.worker("isle", device="cpu,cpu", threads=2)
    job = page.swarm.submit(path)
    page.swarm.wait_job(job, "done")
    page.open()
    page.wait(lambda: page.visible("#step-card"), "the step")
    page.wait_text("#step-of", "isle, round 2")
    for fact in ("1F1B", "2 × 1", "Micro-batches4", "Bubbles", "Measured"):
        page.wait_text("#step-facts", fact)
    bars = page.count("#step-chart svg .instr")
    assert bars >= 2 * (4 + 4 + 1), "forwards, backwards and updates of two devices"
    box = page.driver.find_element(By.ID, "step-chart")
    page.js("document.querySelector('#step-chart').focus()")
    box.send_keys(Keys.HOME)
    page.wait_text("#step-readout", "cpu, copy 0, stage 0: F 0: ")
    box.send_keys(Keys.ARROW_RIGHT)
    page.wait_text("#step-readout", "cpu, copy 0, stage 0: F 1: ")
    box.send_keys(Keys.ARROW_DOWN)
    page.wait_text("#step-readout", "cpu, copy 0, stage 1: ")
    box.send_keys(Keys.END)
    page.wait_text("#step-readout", "cpu, copy 0, stage 1: STEP: ")
    bar = page.driver.find_element(By.CSS_SELECTOR, "#step-chart .instr")
    page.js("arguments[0].dispatchEvent(new MouseEvent('click', {bubbles: true}))", bar)
    page.wait_text("#step-readout", "stage 0: F 0: ")
    for scheme in ("light", "dark"):
        page.look(f"step-{scheme}", scheme=scheme)
        assert page.js(CONTRAST) == []
    assert page.js(UNNAMED) == []
    page.look("step-phone", 360)
    assert page.js("const b = document.querySelector('#step-chart'); return b.scrollWidth > b.clientWidth"), "it scrolls by itself"
    metrics = page.swarm.get("/metrics").text
    for line in ('pipeline_stages{worker="1",name="isle"} 2', 'pipeline_schedule{worker="1",name="isle",schedule="1f1b"} 1',
                 'step_seconds{worker="1",name="isle",is="measured"} '):
        assert f"skerry_worker_{line}" in metrics


def test_a_stopped_worker_is_waited_for(page):
    page.swarm.kill("coordinatord")
    page.swarm.coordinator("--lease", "20s")
    page.swarm.worker("isle-a")
    page.swarm.worker("isle-b")
    page.swarm.joined("isle-a", "isle-b")
    path = write_job(page.swarm.folder, rounds=100000, dim=128, depth=6)
    with open(path, encoding="utf-8") as f:
        text = f.read().replace("steps: 4, lr", "seconds: 40, lr")  # longer than a lease: else the other worker takes over before this one is lost
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    page.swarm.submit(path)
    page.open()
    page.wait(lambda: page.count("#workers tr") == 2, "two workers")
    wait_until(lambda: any(w["name"] == "isle-b" and w["task_kind"] == "train" for w in page.swarm.get("/v1/workers").json()["items"]), 30, "isle-b to train")
    # The page keeps what its panel says: of the seconds until the lease ends, one question from here may take several.
    page.js("""window.seen = new Set();
        window.seeing = setInterval(() => {
          const li = [...document.querySelectorAll('#waiting li')].find((l) => /isle-b.*not heard of/.test(l.textContent));
          if (li) window.seen.add(li.querySelector('time').textContent);
        }, 50);""")
    page.swarm.kill("isle-b", signal.SIGSTOP)
    page.wait(lambda: page.js("return window.seen.size") > 1, "the panel to name the silent worker, and its countdown to go on")
    seen = page.js("clearInterval(window.seeing); return [...window.seen]")
    assert all(s.startswith("within ") for s in seen), seen
    page.look("waiting", scheme="dark")
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


def test_a_coordinator_that_hangs_is_not_live(page):
    page.swarm.worker("isle-a")
    job = page.swarm.submit(rounds=100000, steps=10, replicas=1)
    page.swarm.wait_round(job, 1)
    page.open()
    page.wait(lambda: page.visible("#hero"), "the job")
    page.swarm.kill("coordinatord", signal.SIGSTOP)
    try:
        page.wait(lambda: page.visible("#banner"), "the banner", 30)
        assert "does not answer" in page.text("#banner")
        assert page.js("return document.querySelector('#link').dataset.state") == "gone"
    finally:
        page.swarm.kill("coordinatord", signal.SIGCONT)
    page.wait(lambda: not page.visible("#banner"), "the banner to go", 30)
    page.wait(lambda: page.js("return document.querySelector('#link').dataset.state") == "live", "the live connection")


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
    assert not page.visible("#banner")
    assert page.swarm.skerry("remove", first, "--yes").returncode == 0
    page.wait_text("#banner", f"Job {first} is not on record here any more. What you see is job {second}.")
    assert page.js("return document.querySelector('#job').value") == str(second)


def test_logging_out(page):
    page.open()
    page.wait(lambda: page.visible("#welcome"), "the page")
    page.driver.find_element(By.CSS_SELECTOR, "form[action='/logout'] button").click()
    page.wait(lambda: page.visible("input[name=token]"), "the login form")


# ---- many paths: made-up jobs, so that each state and size can be looked at ----

@pytest.fixture
def show(chromium):
    """Opens the page on a made-up job; any error on the console fails the test."""
    opened = []

    def open_page(made):
        server = canned.Server(made).__enter__()
        opened.append(server)
        chromium.get_log("browser")
        p = Page(chromium, server)
        p.open(log_in=False)
        p.wait(lambda: p.visible("#hero"), "the job")
        return p

    yield open_page
    errors = [e["message"] for e in chromium.get_log("browser") if e["level"] in ("SEVERE", "WARNING")]
    chromium.get("about:blank")
    for server in opened:
        server.__exit__()
    assert not errors, "\n".join(errors)


MADE = ("experts", "lattice", "wide", "dense", "plain")


@pytest.mark.parametrize("name", MADE)
def test_made_up_answers_are_as_documented(name):
    made, api = getattr(canned, name)(), OpenApi(None)
    api.validate_named(made.job, "Job")
    api.validate_named(canned.Server(made).status(), "Status")
    for record in made.metrics:
        api.validate_named(record, "MetricRecord")


@pytest.mark.parametrize("name", MADE)
def test_every_size_fits_and_can_be_read(show, name):
    page = show(getattr(canned, name)())
    page.wait(lambda: page.count("#chart .mean"), "the curves")
    for scheme in ("light", "dark"):
        page.look(f"{name}-{scheme}", scheme=scheme)
        assert page.js(CONTRAST) == []
    assert page.js(UNNAMED) == [] and page.js(UNREACHED) == []
    page.look(f"{name}-phone", 360)
    assert page.js(UNREACHED) == []
    titles = page.js("return [...document.querySelectorAll('.level > span')].map((e) => [e.textContent, getComputedStyle(e).zIndex])")
    assert all(z == "1" for _, z in titles), "the paths' lines cross out the titles of levels"
    assert page.count("#readout span") <= 12, "the legend is too long"


# What people without green (deuteranopia) or red cones (protanopia) see of linear RGB: Machado, Oliveira and Fernandes (2009).
EYES = {
    "all cones": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
}
XYZ = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
LANES = """const paint = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const probe = document.body.appendChild(document.createElement('i'));
  return import('/web/util.js').then(({lane, dashes}) => [...Array(arguments[0]).keys()].map((i) => {
    probe.style.color = lane(i, arguments[0]);
    paint.fillStyle = getComputedStyle(probe).color;
    paint.fillRect(0, 0, 1, 1);
    return [[...paint.getImageData(0, 0, 1, 1).data].slice(0, 3), dashes(i)];
  }))"""


def product(matrix, vector):
    return [sum(a * b for a, b in zip(row, vector)) for row in matrix]


def lab(rgb, eye):
    """CIE L*a*b* of a colour as such an eye sees it."""
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in (c / 255 for c in rgb)]
    seen = [min(1, max(0, v)) for v in product(EYES[eye], linear)]
    x, y, z = (t ** (1 / 3) if t > 216 / 24389 else (24389 / 27 * t + 16) / 116
               for t in (v / white for v, white in zip(product(XYZ, seen), (0.95047, 1, 1.08883))))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_eye_can_tell_the_lines(show, scheme):
    """About 2 can just be told side by side. Neighbours are far from that, the others of the palette still are; of more lines than it
    has colours no two have the same hue and dashes."""
    page = show(canned.plain())
    page.look(f"colours-{scheme}", scheme=scheme)
    for n, apart in ((8, 30), (24, 20)):
        lanes = page.js(LANES, n)
        for eye in EYES:
            seen = [lab(rgb, eye) for rgb, _ in lanes]
            close = [(i, round(math.dist(*seen[i:i + 2]), 1)) for i in range(n - 1) if math.dist(*seen[i:i + 2]) < apart]
            assert not close, f"{eye}: of {n} lines these are like the next: {close}"
            alike = [(i, j) for i in range(n) for j in range(i) if n == 8 and math.dist(seen[i], seen[j]) < 15]
            assert not alike, f"{eye}: of {n} lines these are alike: {alike}"
        assert all(a[1] != b[1] for a, b in zip(lanes, lanes[1:])), "neighbours have the same dashes"
        assert len({str(lane) for lane in lanes}) == n


def test_lines_have_dashes_and_numbers(show):
    page = show(canned.experts())
    page.wait(lambda: page.count("#chart .tag") == 8, "a number at each line")
    assert sorted(page.js("return [...document.querySelectorAll('#chart .tag')].map((t) => t.textContent)")) == [str(i) for i in range(8)]
    dashed = "return [...document.querySelectorAll(arguments[0])].map((e) => getComputedStyle(e).strokeDasharray)"
    assert len(set(page.js(dashed, "#chart .replica"))) == 4
    assert len(set(page.js(dashed, "#readout .key.lane path"))) == 4
    opaque(page, "#chart .replica", 8)


def opaque(page, lines, n):
    """A colour that can be told is one that is not mixed with what lies behind it."""
    page.wait(lambda: page.count(lines) == n, "the lines")
    assert set(page.js("return [...document.querySelectorAll(arguments[0])].map((e) => getComputedStyle(e).opacity)", lines)) == {"1"}


def test_many_lines_are_opaque(show):
    page = show(canned.lattice())
    opaque(page, "#threads path", 16)
    opaque(page, "#chart .replica", 16)


def lit(page):
    return page.js("return [...document.querySelectorAll('.cell.on')].map((c) => Number(c.dataset.module))")


def focused(page):
    return page.js("return document.activeElement.dataset.module || ''")


def test_no_sentence_is_lost_with_the_stream(show):
    """A restarted coordinator numbers its sentences from 1, and sentences that came without a stream come with the next read.
    A hidden page keeps no stream open: a browser has only six connections for all of its pages."""
    page = show(canned.plain())
    hide = "Object.defineProperty(document, 'hidden', {configurable: true, value: arguments[0]}); document.dispatchEvent(new Event('visibilitychange'))"
    page.wait_text("#link-text", "live")
    for text in ("one", "two", "three"):
        page.swarm.say(f"sentence {text}")
    page.wait_text("#log", "sentence three")
    page.js(hide, True)
    page.wait_text("#link-text", "polling")
    page.swarm.restart()
    page.swarm.say("it begins anew")
    page.swarm.say("the next one")
    assert page.swarm.called.count("/v1/events") == 1
    page.js(hide, False)
    page.wait(lambda: page.swarm.called.count("/v1/events") == 2, "the stream to be opened again")
    page.wait_text("#log", "the next one")
    assert "it begins anew" in page.text("#log") and "sentence three" not in page.text("#log")


def test_a_slow_disk_is_not_a_lost_connection(show):
    """While a commit is under way the status is answered, and tasks are not."""
    page = show(canned.plain())
    server, written = page.swarm, threading.Event()
    status, answer, asked = server.status, server.answer, server.called
    server.status = lambda: {**status(), "store": {**status()["store"], "writing_ms": 0 if written.is_set() else 12000}}
    server.answer = lambda path, query: (path != "/v1/tasks" or written.wait(HANGS)) and answer(path, query)
    try:
        page.wait_text("#banner", "disk is slow")
        for read in (1, 2):  # each is given up in turn
            before, states = asked.count("/v1/status"), set()
            page.wait(lambda: states.add(page.text("#banner")[:30]) or asked.count("/v1/status") > before, f"read {read}", 20)  # noqa: B023
            assert states == {"The coordinator's disk is slow"} and page.text("#link-text") == "live"
    finally:
        written.set()
    page.wait(lambda: not page.visible("#banner"), "the banner to go")


def test_a_path_and_its_modules(show):
    made = canned.lattice()
    page = show(made)
    page.wait(lambda: page.count("#paths tr") == 16 and page.count("#threads path") == 16, "the grid")
    assert page.count("#lattice .cell") == 24
    assert [page.js("return document.querySelectorAll('#levels .level > span')[arguments[0]].textContent", i) for i in range(3)] == [
        "Level 0", "Level 1", "Private"]
    assert page.count(".cell[data-outer=running]") == 1
    modules = made.job["path_list"][6]["modules"]
    # A path by the keyboard: its modules light up, Enter holds them, Escape lets go.
    page.js("document.querySelector('#paths tr:first-child button').focus()")
    for _ in range(6):
        page.driver.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    page.wait(lambda: lit(page) == modules, "the modules of path 6")
    assert page.text("#lattice-text").startswith("Path 6: modules 1 (v4) → 2 (v4) → 6 (v4) · partition 6")
    page.wait(lambda: page.count("#chart .replica.on") == 1, "its curve")
    page.driver.switch_to.active_element.send_keys(Keys.ENTER)
    page.js("document.activeElement.blur()")
    page.wait(lambda: lit(page) == modules, "the held path")
    page.js("document.querySelectorAll('#paths button')[6].focus()")
    page.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    page.js("document.activeElement.blur()")
    page.wait(lambda: lit(page) == [], "nothing to be held")
    # A module: the paths that cross it.
    page.js("document.querySelector('.cell').focus()")
    page.wait(lambda: page.count("#paths tr.on") == 4, "the paths of a module")
    page.driver.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert focused(page) == "2"
    page.driver.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    assert focused(page) == "6"
    assert page.count(".cell[tabindex='0']") == 1, "one tab stop"
    page.wait_text("#lattice-text", "Level 1, module 1: version 4, 2.1 M parameters, crossed by 4 paths (1, 5, 9, 13)")


def test_who_trains_what(show):
    page = show(canned.lattice())
    page.wait(lambda: page.count("#paths tr") == 16, "the paths")
    row = "#paths tr:nth-child(2)"
    assert "isle-2 · step 12 of 50" in page.text(row)
    assert "1,327 samples · partition 1, 318 k tokens" in page.text(row)
    assert "4 / 10" in page.text(row) and "0.4320" in page.text(row)
    assert "2.820" in page.text(row), "bits per byte"
    assert "0.4200 (3)" in page.text(row), "the best round"
    assert "queued" in page.text("#paths tr:nth-child(12)")
    assert "Bits per byte" in page.text("#stats") and "Rows/s" in page.text("#stats")
    assert page.text("#workers-rate") == "Rows/s"


def test_a_curve_of_one_point_and_one_of_hundreds_of_paths(show):
    made = canned.plain()
    made.metrics = made.metrics[:1]
    page = show(made)
    page.wait(lambda: page.count("#chart .mean"), "the point")
    assert page.js("return document.querySelector('#chart .mean').getAttribute('d')").endswith("h0"), "it is a dot"
    assert page.js("return [...document.querySelectorAll('#chart text')].map((t) => t.textContent)")[-2:] == ["step 0", "1"]
    many = """const {LossChart} = await import('/web/chart.js');
        const bin = {mean: 1, by: new Map([...Array(500000).keys()].map((i) => [i, i]))};
        return LossChart.prototype.scales.call({size: {width: 100, height: 100}}, {lo: 0, hi: 1, bins: [bin]}, []).hi;"""
    assert page.js(f"return (async () => {{{many}}})()") > 499999


def test_numbers_have_no_exponents(show):
    page = show(canned.plain())
    assert page.js("return import('/web/util.js').then(({compact, digits}) => [compact(999.9e6), compact(4.2e6), compact(12345), digits(99.6, 2)])") == [
        "1 G", "4.2 M", "12.3 k", "100"]


def test_a_viewer_is_offered_nothing_to_do(show):
    made = canned.plain()
    page = show(made)
    page.wait(lambda: page.visible("#draw"), "the button for samples")
    made.role = "viewer"
    page.wait(lambda: not page.visible("#draw"), "it to go")
    made.workers.clear()
    page.wait_text("#workers-empty", "No worker has joined.")
    assert page.count("#workers-empty button") == 0


def test_times_are_told_with_their_day(show):
    page = show(canned.plain())
    clock = "return import('/web/util.js').then(({clock}) => clock(new Date(...arguments[0]).toISOString()))"
    assert page.js(clock, [2026, 0, 2, 0, 5, 9]) == "Jan 2, 00:05:09"
    assert page.js("return import('/web/util.js').then(({clock}) => clock(new Date().toISOString()))").count(":") == 2
    page.swarm.say("it began")
    page.wait_text("#log", "Mar 1, ")


def test_many_workers_leave_room_for_the_rest(show):
    """Of two hundred the table shows some, first those that somebody should look at."""
    made = canned.dense()
    made.workers[77]["state"] = "quarantined"
    page = show(made)
    page.wait(lambda: page.count("#workers tr") == 100, "the workers")
    assert page.text("#workers tr:first-child .strong") == "isle-78"
    assert "`skerry workers` lists 100 more" in page.text("#workers-sum")
    assert page.js("return document.querySelector('#workers').closest('section').getBoundingClientRect().height") < 600


def test_texts_are_text(show):
    made = canned.lattice()
    page = show(made)
    page.wait(lambda: page.visible("#sample-text"), "the text")
    again = "/v1/jobs/1?history=0&samples=0"  # until there is another one
    page.wait(lambda: page.swarm.called.count(again) > 1, "it to be asked for without samples")
    assert page.text("#sample-text") == made.job["samples"][1]["text"]
    assert page.count("#sample-text b") == 0 and not page.visible("#picture")
    assert page.count("#sides [role=tab]") == 2
    page.js("document.querySelector('#sides [aria-selected=true]').focus()")
    page.driver.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    page.wait_text("#sample-text", "<b>5</b>")
    page.driver.find_element(By.ID, "slider").send_keys(Keys.HOME)
    page.wait_text("#sample-text", "of round 2")


def test_the_mixture_beside_its_experts(show):
    made = canned.experts()
    page = show(made)
    page.wait(lambda: page.count("#sides [role=tab]") == 9, "a side for each expert")
    assert page.text("#sides [aria-selected=true]") == "Mixture"
    page.wait(lambda: page.js("const i = document.querySelector('#picture'); return i.complete && i.naturalWidth > 16"), "the grid")
    newest = {s["path"]: s["blob"] for s in made.job["samples"]}
    assert page.js("return document.querySelector('#picture').src").endswith(newest[None])
    assert page.js("return [...document.querySelectorAll('#sides img')].map((i) => i.src.slice(-64))") == [
        newest[p] for p in (None, *range(8))]
    page.js("document.querySelector('#sides [aria-selected=true]').focus()")
    page.driver.switch_to.active_element.send_keys(Keys.END)
    page.wait_text("#caption", "Expert 7, after 4 rounds")
    assert page.js("return document.querySelector('#picture').src").endswith(newest[7])


def test_partitions_and_figures(show):
    page = show(canned.experts())
    page.wait(lambda: page.count("#partitions tr") == 8, "the partitions")
    assert "largest 1.36 × the mean" in page.text("#partitions-sum")
    assert page.js("return document.querySelectorAll('#partitions .mini i')[3].style.width") == "100%"
    assert "1,279 · 17.0 %" in page.text("#partitions tr:nth-child(4)")
    found = page.text("#figures")
    order = [found.index(name) for name in ("oracle", "top2", "top1", "full")]
    assert order == sorted(order), "strategies from the lowest loss"
    assert "Router accuracy71.3 %" in found and "Smallest partition410 samples" in found
    assert "routed" not in found.lower(), "what the router sends stands with the partitions"
    # The router's loss is of another kind and has a picture of its own.
    page.wait(lambda: page.count("#chart .replica") == 8, "a curve of each expert")
    page.driver.find_element(By.ID, "loss-network").send_keys("r")
    page.wait(lambda: page.count("#chart .replica") == 0 and page.count("#chart .mean") == 1, "the router's curve")


def test_the_stages_of_a_partitioned_job(show):
    made = canned.experts()
    made.job.update(state="features", round=0, generation=0, stage={"done": 3, "total": 9}, history=[], figures=[], samples=[])
    for p in made.job["partitions"]:
        p.update(samples=0, share=None)
    made.metrics.clear()
    page = show(made)
    page.wait_text("#stage-text", "3 of 9 shards have their features")
    assert page.text("#stages [aria-current=step]") == "Features"
    assert page.js("return document.querySelector('#stage-bar').getAttribute('aria-valuenow')") == "3"
    assert page.js("return document.querySelector('#job-state').dataset.tone") == "sand"
    assert page.visible("#partitions-empty") and page.visible("#figures-empty")
    page.look("features")
    made.job.update(state="scoring", round=2, generation=1, stage={"done": 1, "total": 4})
    page.wait_text("#stage-text", "1 of 4 shards are scored by the paths")
    assert page.text("#stages li:first-child") == "Scores"


def test_one_path_needs_no_grid(show):
    page = show(canned.plain())
    page.wait(lambda: page.count("#modules tr") == 1, "the module")
    assert not any(page.visible(f"#{card}-card") for card in ("paths", "partitions", "figures"))
    assert not page.visible("#stage") and not page.visible("#loss-of")


def test_numbers_of_a_trainer(show):
    """The page shows another series in place of the loss; a job without any offers no choice."""
    page = show(canned.plain())
    page.wait(lambda: page.count("#chart .mean"), "the curves")
    assert not page.visible("#shown")
    page = show(canned.plain(numbers=True))
    page.wait(lambda: page.visible("#shown"), "the choice")
    curve = page.js("return document.querySelector('#chart .mean').getAttribute('d')")
    page.driver.find_element(By.ID, "shown-series").send_keys("a")
    page.wait(lambda: page.js("return document.querySelector('#chart .mean').getAttribute('d')") != curve, "its curve")
    page.wait_text("#readout", "accuracy")
    assert "accuracy over steps" in page.js("return document.querySelector('#chart').getAttribute('aria-label')").lower()
    assert page.count("#chart .eval-dot") == 0 and page.js(UNNAMED) == []


def test_real_experts(page):
    for name in ("isle-a", "isle-b"):
        page.swarm.worker(name)
    folder = os.path.join(page.swarm.folder, "experts")
    os.makedirs(folder)
    job = page.swarm.submit(test_ddm.write(folder))
    page.open()
    page.wait(lambda: page.visible("#hero"), "the job")
    page.swarm.wait_job(job, "done")
    page.wait_text("#job-state", "done")
    page.wait(lambda: page.count("#paths tr") == 4 and page.count("#partitions tr") == 3, "paths and partitions")
    assert page.text("#paths-title") == "Experts and router"
    page.wait(lambda: page.count("#sides [role=tab]") == 4, "grids of the mixture and of three experts")
    page.wait(lambda: page.count("#chart .replica") == 3, "a curve of each expert")
    page.wait_text("#figures", "Router accuracy")
    page.wait_text("#log", "samples of the mixture were drawn")
    page.look("real-experts")
    # Drawing on demand is of the side that is looked at.
    before = len(page.swarm.job(job)["samples"])
    page.js("document.querySelectorAll('#sides button')[2].click()")
    page.driver.find_element(By.ID, "draw").click()
    page.wait(lambda: len(page.swarm.job(job)["samples"]) > before, "the new samples")
    assert page.swarm.job(job)["samples"][-1]["path"] == 1
