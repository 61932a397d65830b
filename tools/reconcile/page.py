"""A report as one page of HTML: no script, nothing that is loaded from elsewhere, the same bytes for the same report.

Keys and values are users' data, and whoever wrote them may have wished that somebody opens them in a browser: all text is
escaped, and the page itself forbids everything but its own style.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import islice

from tools.reconcile.findings import Facts, Finding, facts_text
from tools.reconcile.report import Report, Summary, facts_of

FINDINGS_SHOWN = 1_000
BARS_MAX = 64
_WIDTH, _HEIGHT, _LABELLED = 640, 120, 22
_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem;color:#1b2733;background:#fff}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}code,td.m,pre{font:13px/1.4 ui-monospace,monospace}
.consistent{color:#17663a}.differences{color:#a3201b}.incomplete{color:#8a5a00}
table{border-collapse:collapse;width:100%}th,td{text-align:left;vertical-align:top;padding:.3rem .6rem;
border-bottom:1px solid #dde3e9;overflow-wrap:anywhere}tr.wrong td{background:#fdf0ef}
svg{display:block;max-width:100%}svg text{font:12px ui-monospace,monospace;fill:#1b2733}rect{fill:#3d6fa5}
details{margin:.2rem 0}
""".strip()


def page_of(report: Report) -> bytes:
    """The page."""
    return "\n".join(_page(report.summary, report)).encode() + b"\n"


def _page(summary: Summary, report: Report) -> Iterator[str]:
    title = f"Reconciliation of {summary.cluster or 'directories'}: {summary.verdict}"
    yield "<!doctype html>"
    yield '<html lang="en"><head><meta charset="utf-8">'
    yield "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
    yield f'<h1>{escape(summary.cluster or "directories")}: <span class="{summary.verdict}">{summary.verdict}</span></h1>'
    yield "<pre>" + escape("\n".join(facts_of(summary))) + "</pre>"
    yield from _table("directories", ("node", "path", "readable", "checkpoint", "log", "map"), _directories(summary))
    yield from _bars("findings by kind", summary.findings)
    yield from _bars("findings by namespace", {name: tally.findings for name, tally in summary.namespaces.items()})
    partitions: Counter[int] = Counter()
    lag: Counter[str] = Counter()
    for apart in summary.apart:
        lag[apart.node] += apart.behind
    for finding in report.decoded():
        partitions[finding.partition] += 1
        if finding.kind in ("BEHIND", "COUNTER_GAP") and finding.counters:
            lag.update(dict.fromkeys(finding.on, finding.counters[-1] - finding.counters[0] + 1))
    yield from _bars("findings by partition", _in_runs(partitions, summary.partitions))
    yield from _bars("counters that a node lacks", dict(sorted(lag.items())))
    yield from _findings([*islice(report.decoded(), FINDINGS_SHOWN)])
    if summary.kept > FINDINGS_SHOWN or summary.kept < sum(summary.findings.values()):
        shown = min(summary.kept, FINDINGS_SHOWN)
        yield f"<p>{shown} of {sum(summary.findings.values())} are shown; findings.jsonl has {summary.kept}.</p>"
    yield "</body></html>"


def _directories(summary: Summary) -> Iterator[tuple[str, ...]]:
    for d in summary.directories:
        yield d.node, d.path, "yes" if d.readable else "no", str(d.checkpoint_lsn), str(d.lsn), d.topology


def _in_runs(found: Mapping[int, int], partitions: int) -> dict[str, int]:
    """Findings by partition, in at most BARS_MAX runs of partitions, all of them, so that it shows where they lie."""
    if not partitions or all(number < 0 for number in found):
        return {}
    wide = -(-partitions // BARS_MAX)
    counted: Counter[int] = Counter()
    for number, count in found.items():
        counted[number // wide] += count if number >= 0 else 0
    runs = range(-(-partitions // wide))
    return {f"{run * wide}" if wide == 1 else f"{run * wide}..": counted[run] for run in runs}


def _bars(title: str, counts: Mapping[str, int]) -> Iterator[str]:
    """A plot; nothing where there is nothing to see. Few bars have a line each, many stand side by side."""
    most = max(counts.values(), default=0)
    if not most:
        return
    yield f"<h2>{escape(title)}</h2>"
    if len(counts) <= _LABELLED:
        yield f'<svg role="img" aria-label="{escape(title)}" viewBox="0 0 {_WIDTH} {20 * len(counts)}" width="{_WIDTH}">'
        for at, (name, count) in enumerate(counts.items()):
            wide = round(count / most * 300, 1)
            yield f'<text x="210" y="{20 * at + 14}" text-anchor="end">{escape(name[:28])}</text>'
            place = f'x="220" y="{20 * at + 3}" width="{wide}" height="14"'
            yield f"<rect {place}><title>{escape(name)}: {count}</title></rect>"
            yield f'<text x="{226 + wide}" y="{20 * at + 14}">{count}</text>'
    else:
        step = _WIDTH / len(counts)
        yield f'<svg role="img" aria-label="{escape(title)}" viewBox="0 0 {_WIDTH} {_HEIGHT + 20}" width="{_WIDTH}">'
        for at, (name, count) in enumerate(counts.items()):
            high = round(count / most * _HEIGHT, 1)
            place = f'x="{at * step:.1f}" y="{_HEIGHT - high:.1f}" width="{step * 0.85:.1f}" height="{high}"'
            yield f"<rect {place}><title>{escape(name)}: {count}</title></rect>"
        first, last = next(iter(counts)), list(counts)[-1]
        yield f'<text x="0" y="{_HEIGHT + 15}">{escape(first)}</text>'
        yield f'<text x="{_WIDTH}" y="{_HEIGHT + 15}" text-anchor="end">{escape(last)} (most: {most})</text>'
    yield "</svg>"


def _table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"<h2>{escape(title)}</h2><table><thead><tr>"
    yield "".join(f"<th>{escape(name)}</th>" for name in head) + "</tr></thead><tbody>"
    for row in rows:
        yield "<tr>" + "".join(f'<td class="m">{escape(cell)}</td>' for cell in row) + "</tr>"
    yield "</tbody></table>"


def _findings(findings: Sequence[Finding]) -> Iterator[str]:
    if not findings:
        return
    yield "<h2>findings</h2><table><thead><tr><th>kind</th><th>where</th><th>key</th><th>on</th><th>proof</th>"
    yield "<th>what is known</th></tr></thead><tbody>"
    for f in findings:
        cells = (str(f.kind), f.where, f.key or "", ", ".join(f.on), str(f.proof or ""))
        yield "<tr>" + "".join(f'<td class="m">{escape(cell)}</td>' for cell in cells) + "<td>" + escape(f.detail)
        nodes = list(dict.fromkeys([*f.copies, *f.evidence]))
        if nodes or f.right:
            yield "<details><summary>copies and logs</summary><table>"
            for node in nodes:
                wrong = ' class="wrong"' if node in f.on else ""
                yield f"<tr{wrong}><td>{escape(node)}</td>{_facts(f.copies.get(node))}{_facts(f.evidence.get(node))}</tr>"
            if f.right:
                yield f"<tr><td>right</td>{_facts(f.right)}<td></td></tr>"
            yield "</table></details>"
        yield "</td></tr>"
    yield "</tbody></table>"


def _facts(facts: Facts | None) -> str:
    return f'<td class="m">{escape(facts_text(facts)) if facts else ""}</td>'
