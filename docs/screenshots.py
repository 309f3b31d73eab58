"""Take the screenshots beside the project's page: `python docs/screenshots.py docs/report.html docs`.

It needs playwright and Chromium, whose path is $CHROMIUM or found on $PATH.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

VIEWS = (
    # name, what is shown, width and height in CSS pixels
    ("answers", "#answers", 1400, 760),
    ("matrix", "#matrix", 1400, 900),
    ("clause", "#GRID-3", 1400, 900),
    ("grid", "#picture-grid", 1100, 720),
)
SCHEMES = ("light", "dark")
NARROW = (400, 820)  # CSS pixels


def chromium() -> str:
    """Name the browser."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if found is None:
        sys.exit("screenshots: no Chromium is on $PATH, and $CHROMIUM names none. Debian's package is `chromium`.")
    return found


def show(page: Page, address: str, anchor: str) -> None:
    """Open the page with one part of it at the top."""
    page.goto(f"{address}{anchor}")
    page.evaluate("document.fonts.ready")
    page.evaluate("anchor => document.querySelector(anchor).scrollIntoView()", anchor)
    page.evaluate("document.activeElement.blur()")


def main(report: Path, folder: Path) -> None:
    """Take each view wide in light and dark, and narrow in light."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        for name, anchor, *size in VIEWS:
            shots = [(scheme, tuple(size), f"{name}-{scheme}") for scheme in SCHEMES]
            for scheme, (width, height), file in [*shots, ("light", NARROW, f"{name}-narrow")]:
                page = browser.new_page(
                    viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce"
                )
                show(page, report.absolute().as_uri(), anchor)
                page.screenshot(path=folder / f"{file}.png")
                page.close()
                print(folder / f"{file}.png")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
