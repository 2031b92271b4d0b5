"""A real Chromium, driven headless; installed on the way where that is possible."""

import base64
import contextlib
import fcntl
import os
import pathlib
import shutil
import subprocess
import tempfile

import pytest

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars",
)  # fmt: skip


LOCK = pathlib.Path(tempfile.gettempdir()) / "stayfinite-tests-apt.lock"


def need(*programs: tuple[str, str]) -> None:
    """(program, Debian package) each; skipped, with the reason, where they cannot be had."""
    if _missing(programs) and os.geteuid() == 0 and shutil.which("apt-get"):
        with open(LOCK, "w") as lock:  # the other test process may be at it
            fcntl.flock(lock, fcntl.LOCK_EX)
            _install(_missing(programs))
    if missing := _missing(programs):
        pytest.skip(f"cannot be had here: {', '.join(missing)} (apt-get install, as root)")


def _missing(programs: tuple[tuple[str, str], ...]) -> list[str]:
    return [package for program, package in programs if shutil.which(program) is None]


def _install(packages: list[str]) -> None:
    apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=600", "-o", "Acquire::Retries=3"]
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    steps = (["update"], ["install", "-y", *packages])
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "check": False}
    with contextlib.suppress(subprocess.TimeoutExpired):
        for step in steps if packages else ():
            subprocess.run([*apt, *step], env=env, timeout=300, **quiet)


@contextlib.contextmanager
def chromium(width: int, height: int = 900):
    """A browser window of that size, with an empty profile and its log kept."""
    need(("chromium", "chromium"), ("chromedriver", "chromium-driver"))
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        driver = _started(webdriver, options)
        try:
            size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            yield driver
        finally:
            driver.quit()


def _started(webdriver, options):
    """On a busy machine a browser may take longer to start than its driver waits: once more then."""
    from selenium.common.exceptions import WebDriverException
    from selenium.webdriver.chrome.service import Service

    with contextlib.suppress(WebDriverException):
        return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))


def screenshot(driver, path: pathlib.Path) -> None:
    """The whole page, not only what the window shows."""
    size = driver.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
    clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
    options = {"captureBeyondViewport": True, "clip": clip}
    shot = driver.execute_cdp_cmd("Page.captureScreenshot", options)
    path.write_bytes(base64.b64decode(shot["data"]))
