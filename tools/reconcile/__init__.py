"""Do the copies agree? Answered from the data directories of nodes: live, stopped, or copied elsewhere.

```
 directories ---> survey, one each, logs by segments ---> plan ---> check_share, one per share ---> attribute ---> report
                  whose, what topology                              all nodes' files of it:         what the logs
                                                                    compare inside                  tell of findings
```

Both engines run the same functions over lists: `local` in a loop, `spark` as tasks. So nothing is shuffled, only
findings leave a task, and the report is the same to the byte. The modules, from the bottom up: `findings`, `copies`,
`counts`, `votes`, `gaps`, `rows`, `compare`, `transactions`, `task` (pure), `spark_errors`, `fetched`, `logs`,
`summed`, `survey`, `quiet`, `plan`, `shelf`, `share` (which read), `aside`, `report`, `run`, `session`, `on_spark`,
`on_hosts`, `cli`, `spark_job`; `again` and `watch`, for directories that are written to; `sketch`, `sketched` and
`sketch_cli`, for directories that nobody has in one place; `evidence`, which asks the logs about what was found;
`plans` (pure), `changes`, `apply` and `repair_cli`, which say what to do about it, and do it; `tables`, `source` and
`export`, which show directories as tables, `exported`, which compares these, and `writer`, which writes tables to a
cluster.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tools.reconcile.findings import Finding, Kind
    from tools.reconcile.report import ExitCode, Report, Summary
    from tools.reconcile.run import check, in_this_process
    from tools.shown import Values

__all__ = ["ExitCode", "Finding", "Kind", "Report", "Summary", "Values", "check", "in_this_process"]

_WHERE = {"Finding": "findings", "Kind": "findings", "Values": "findings", "check": "run", "in_this_process": "run"}


def __getattr__(name: str) -> object:
    """A name of this package (PEP 562), imported when it is first asked for: a reader of a log needs only the findings."""
    if name not in __all__:
        raise AttributeError(f"module 'tools.reconcile' has no attribute {name!r}")
    return getattr(importlib.import_module(f"tools.reconcile.{_WHERE.get(name, 'report')}"), name)
