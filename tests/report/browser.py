"""A real Chromium, driven headless; installed on the way where that is possible."""

import base64
import contextlib
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


def need(*programs: tuple[str, str]) -> None:
    """(program, Debian package) each; skip with the reason only outside of CI."""
    missing = [package for program, package in programs if shutil.which(program) is None]
    if missing and os.geteuid() == 0 and shutil.which("apt-get"):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "check": False}
        subprocess.run(["apt-get", "update", "-qq"], **quiet)
        subprocess.run(["apt-get", "install", "-y", "-qq", *missing], **quiet)
    still = [package for program, package in programs if shutil.which(program) is None]
    if still and not os.environ.get("CI"):
        pytest.skip(f"cannot be had here: {', '.join(still)}")
    assert not still, f"apt-get install {' '.join(still)}"


@contextlib.contextmanager
def chromium(width: int, height: int = 900):
    """A browser window of that size, with an empty profile and its log kept."""
    need(("chromium", "chromium"), ("chromedriver", "chromium-driver"))
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        try:
            size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            yield driver
        finally:
            driver.quit()


def screenshot(driver, path: pathlib.Path) -> None:
    """The whole page, not only what the window shows."""
    size = driver.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
    clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
    options = {"captureBeyondViewport": True, "clip": clip}
    shot = driver.execute_cdp_cmd("Page.captureScreenshot", options)
    path.write_bytes(base64.b64decode(shot["data"]))
