"""The page of a report: it is whole, it says what the report says, and nothing in a report becomes markup.

No browser is a dependency of this project, so the page is read by the parser of the standard library: every element must
end where it should. Where a browser is there, it opens the page as well (`sudo apt-get install chromium`).
"""

from __future__ import annotations

import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from engine.state.store import Entry
from tests.support.damages import DAMAGES
from tests.support.directories import copies, replace
from tests.support.patience import PATIENCE_SECONDS
from tests.support.reconciled import fragment_of
from tools.reconcile import Report, Values, check
from tools.reconcile.aside import Lines
from tools.reconcile.page import BARS_MAX, FINDINGS_SHOWN, page_of

VOID = {"meta"}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


class Page(HTMLParser):
    """Elements, texts and rows; an element that does not end is a mistake."""

    def __init__(self, data: bytes) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: dict[str, int] = {}
        self.cells: list[str] = []
        self.text = ""
        self.titles: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(data.decode())
        self.close()
        assert self.open == [], f"these do not end: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)
        if tag == "td":
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> ends nothing"
        assert self.open.pop() == tag, f"</{tag}> ends another element"

    def handle_data(self, data: str) -> None:
        self.text += data
        if "td" in self.open:
            self.cells[-1] += data
        if self.open[-2:] == ["rect", "title"]:
            self.titles.append(data)


NAMES = ["several rows", "two histories", "a store cut short", "a copy one counter behind", "every partition lost"]


@pytest.mark.parametrize("name", NAMES)
def test_a_page_says_what_the_report_says(name: str, stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path)
    DAMAGES[name].do(tmp_path)
    report = check([str(path) for path in directories if path.exists()], values=Values.FULL)
    data = page_of(report)
    assert data == page_of(report)
    page = Page(data)
    assert f"{report.summary.cluster}: {report.summary.verdict}" in page.text
    for finding in report.decoded():
        assert {str(finding.kind), finding.where, finding.key or ""} <= set(page.cells)
        assert all(node in page.text for node in (*finding.on, *finding.copies, *finding.evidence))
    for kind, count in report.summary.findings.items():
        assert f"{kind}: {count}" in page.titles
    report.write(tmp_path / "report", data)
    assert (tmp_path / "report" / "report.html").read_bytes() == data


def test_hostile_text_is_text(stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path)
    key = b"<script>alert('1')</script>\"&amp;</td><img src=x onerror=a>"
    replace(directories[1], ("acc", fragment_of(key)[1]), {key: Entry(1, 1, b"</table><script src=//evil></script>")})
    report = check([str(path) for path in directories], values=Values.FULL)
    page = Page(page_of(report))
    assert key.decode() in page.cells
    assert not {"script", "img", "link", "iframe", "a"} & page.tags.keys()
    assert not [name for name, _ in page.attributes if name.startswith("on") or name in {"src", "href"}]
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in page.attributes


def opened(page: Path, home: Path) -> Page:
    """What a browser has made of a page, after whatever it may do by itself."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"no browser is installed: none of {', '.join(BROWSERS)}")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={home}"]
    ended = subprocess.run(
        [browser, *options, "--virtual-time-budget=2000", "--dump-dom", page.as_uri()],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    return Page(ended.stdout)


@pytest.mark.processes
@pytest.mark.slow
def test_a_browser_shows_what_the_report_says_and_does_nothing_that_is_written_in_it(
    stopped: list[Path], tmp_path: Path
) -> None:
    """And a page of ours that may do something does it there: else the browser would prove nothing."""
    directories = copies(stopped, tmp_path)
    DAMAGES["several rows"].do(tmp_path)
    script = "document.body.append('it was done')"
    key = f'<script>{script}</script><img src=x onerror="{script}">'.encode()
    replace(directories[1], ("acc", fragment_of(key)[1]), {key: Entry(1, 1, f"</table><script>{script}</script>".encode())})
    report = check([str(path) for path in directories], values=Values.FULL)
    report.write(tmp_path / "report", page_of(report))
    page = opened(tmp_path / "report" / "report.html", tmp_path / "home")
    assert f"{report.summary.cluster}: {report.summary.verdict}" in page.text
    assert key.decode() in page.cells
    for finding in report.decoded():
        assert {str(finding.kind), finding.where, finding.key or ""} <= set(page.cells)
    assert page.titles == Page(page_of(report)).titles, "the plots are whole"
    tags, ours = page.tags, Page(page_of(report)).tags
    assert tags | {"tbody": 0} == ours | {"tbody": 0}, "nothing became another element; a browser gives tables bodies"
    assert "it was done" not in page.text.replace(script, "")
    (tmp_path / "does.html").write_text(f"<!DOCTYPE html><title>a</title><p>b</p><script>{script}</script>")
    assert "it was done" in opened(tmp_path / "does.html", tmp_path / "home").text.replace(script, "")


def test_a_page_stays_small_however_much_was_found(stopped: list[Path]) -> None:
    report = check([str(path) for path in stopped])
    line = b'{"kind":"MISSING_ON","partition":%d,"namespace":"acc","key":"k","on":["n1"],"proof":"log"}'
    lines = Lines()
    lines.add(line % (at % 1024) for at in range(5_000))
    many = msgspec.structs.replace(
        report.summary, partitions=1024, findings={"MISSING_ON": 5_000}, kept=5_000, verdict="differences", exit_code=1
    )
    data = page_of(Report(lines, many))
    page = Page(data)
    assert page.cells.count("MISSING_ON") == FINDINGS_SHOWN
    assert f"{FINDINGS_SHOWN} of 5000 are shown; findings.jsonl has 5000." in page.text
    bars = [title for title in page.titles if "..:" in title]
    assert len(bars) == BARS_MAX
    assert sum(int(title.rpartition(" ")[2]) for title in bars) == 5_000
    assert len(data) < 500_000


def test_what_is_compared_with_other_tools_is_shown_by_tests() -> None:
    """The page of comparisons names, for each line that says `yes` of ours, a test that is there."""
    root = Path(__file__).parents[3]
    lines = (root / "docs" / "reconcile-compared.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")][1:]
    rows = [row for row in rows if not row[0].startswith("---")]
    assert len(rows) >= 25
    for row in rows:
        if row[1] == "-":
            assert row[-1] == "", row
            continue
        file, _, name = row[-1].strip("`").partition("::")
        assert f"def {name}(" in (root / "tests" / file).read_text(encoding="utf-8"), row
