"""Take the pictures of reports for the README and docs/report.md, of plans that are really made.

`python scripts/make_screenshots.py` (needs Chromium and playwright) places the two examples below, opens their reports
as a person would, and writes docs/images/report_*.png: the page down to its timeline, and the model by module, each
light and dark. `--pages FOLDER` takes pictures of every section of the pages there instead, on a laptop and on a phone,
to look at.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

import placewise as pw

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
PLANS: dict[str, dict[str, Any]] = {
    "report": {"model": "zoo:inception-v3", "devices": "3xV100-16GB,cpu", "budget": "10s"},
    "report_graph": {
        "model": "zoo:bert-base",
        "devices": "3xV100-16GB",
        "objective": "throughput",
        "dims": {"batch": 8},
    },
}
LAPTOP = {"viewport": {"width": 1180, "height": 900}}
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True, "device_scale_factor": 2}
SETTLED = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


def main() -> None:
    """Place, report, open, take pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Path, help="the plan of the first two pictures, if it was made already")
    parser.add_argument("--pages", type=Path, help="pictures of every section of these pages, into their folder")
    options = parser.parse_args()
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        if options.pages:
            for page in sorted(options.pages.glob("*.html")):
                _sections(browser, page)
        else:
            _for_the_readme(browser, options.plan)
        browser.close()


def _for_the_readme(browser: Browser, plan: Path | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, problem_options in PLANS.items():
            page = Path(folder) / f"{name}.html"
            if plan is not None and name == "report":
                pw.report(plan, page)
            else:
                pw.place(**{"budget": "10s"} | problem_options).report(page)
            for theme in ("light", "dark"):
                shown = _opened(browser, page, color_scheme=theme, **LAPTOP)
                _taken(shown, IMAGES / f"{name}_{theme}.png", "graph" if name == "report_graph" else None)


def _sections(browser: Browser, page: Path) -> None:
    """Every section of a page: light and dark, on a laptop and on a phone."""
    for size, settings in (("laptop", LAPTOP), ("phone", PHONE)):
        for theme in ("light", "dark"):
            shown = _opened(browser, page, color_scheme=theme, **settings)
            for section in shown.locator("main > section").all():
                if section.is_visible():
                    name = section.get_attribute("id")
                    _taken(shown, page.with_name(f"{page.stem}_{size}_{theme}_{name}.png"), name)
            shown.context.close()


def _opened(browser: Browser, page: Path, **settings: Any) -> Page:
    shown = browser.new_context(**settings).new_page()
    shown.goto(page.as_uri())
    shown.evaluate(SETTLED)
    return shown


def _taken(shown: Page, target: Path, section: str | None = None) -> None:
    """A picture of a section, or of the page from its top to the end of its timeline."""
    first, last = (section, section) if section else ("title", "timeline")
    shown.locator(f"#{last}").scroll_into_view_if_needed()
    shown.evaluate(SETTLED)
    low, high = (shown.locator(f"#{name}").bounding_box() for name in (first, last))
    above = shown.evaluate("window.scrollY")
    top = low["y"] + above - 16 if section else 0
    clip = {
        "x": 0,
        "y": top,
        "width": shown.viewport_size["width"],
        "height": high["y"] + above + high["height"] + 16 - top,
    }
    shown.screenshot(path=target, clip=clip, full_page=True)
    print(f"wrote {target}")


if __name__ == "__main__":
    main()
