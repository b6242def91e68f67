"""Where the rows of one run stand, as people see them, and the drawing of it while it runs."""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    import psycopg

# How long a rate looks back, in seconds.
RATE_SECONDS = 5.0
# Where nobody watches: a line at most this often, in seconds.
LINE_SECONDS = 2.0

# The rows of this run. Temporary: it lives as long as the connection that made it.
CREATE = "create temporary table run_rows (id bigint primary key)"
ADD = """
insert into run_rows select id from render_jobs where reference = any(%s) on conflict do nothing"""
ADD_UNFINISHED = """
insert into run_rows select id from job_customer where state = 'working' on conflict do nothing"""
ADD_ALL = "insert into run_rows select id from render_jobs on conflict do nothing"

COUNT = """
select r.status as submission, g.status as job, c.state,
       g.status = 'completed' and g.result is null and g.attention is null as lacks_result,
       count(*) as number
  from run_rows
  join render_jobs r using (id)
  join job_customer c using (id)
  left join gen_job g on g.job_id = r.sume_job_id
 group by 1, 2, 3, 4"""

GATES = """
select name, reason, closures,
       (extract(epoch from closed_until) - extract(epoch from now()))::float8 as seconds
  from pace_gate where closed_until is not null order by name"""


@dataclass(frozen=True)
class Gate:
    """A gate that is not open: what it holds back, why, and for how many more seconds."""

    name: str
    reason: str
    seconds: float
    closures: int


@dataclass(frozen=True)
class Standing:
    """Where all rows of the run stand at one moment."""

    working: int = 0
    done: int = 0
    needs_attention: int = 0
    # Parts of `working`.
    pending: int = 0
    submitting: int = 0
    queued: int = 0
    processing: int = 0
    # Done, but the result has not been fetched yet.
    lacks_result: int = 0
    submitted: int = 0
    gates: tuple[Gate, ...] = ()

    @property
    def rows(self) -> int:
        return self.working + self.done + self.needs_attention

    @property
    def finished(self) -> bool:
        return self.working == 0 and self.lacks_result == 0


def standing(connection: psycopg.Connection[Any]) -> Standing:
    """Read where the rows of ``run_rows`` stand."""
    states: Counter[str] = Counter()
    for submission, job, state, lacks_result, number in connection.execute(COUNT):
        states[state] += number
        if submission == "submitted":
            states["submitted"] += number
        if lacks_result:
            states["lacks_result"] += number
        if state == "working":
            states[job if submission == "submitted" and job else submission] += number
    known = {name: states[name] for name in Standing.__dataclass_fields__ if name in states}
    gates = tuple(
        Gate(name, reason or "", seconds, closures)
        for name, reason, closures, seconds in connection.execute(GATES)
    )
    return Standing(**known, gates=gates)


@dataclass
class Rate:
    """Things a second over the last few seconds."""

    _seen: deque[tuple[float, int]] = field(default_factory=deque)

    def note(self, now: float, total: int) -> float:
        self._seen.append((now, total))
        while len(self._seen) > 2 and now - self._seen[0][0] > RATE_SECONDS:
            self._seen.popleft()
        since, before = self._seen[0]
        return (total - before) / (now - since) if now > since else 0.0


class Display:
    """Draws the standing: live on a terminal, else as a line now and then. A context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._begun = time.monotonic()
        self._live = Live(console=console, transient=True, auto_refresh=False)
        self._submitted = Rate()
        self._ended = Rate()
        self._said_at = 0.0
        self._said = ""

    def __enter__(self) -> Display:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def show(self, now: Standing) -> None:
        """Draw it."""
        moment = time.monotonic()
        elapsed = moment - self._begun
        submitted = self._submitted.note(moment, now.submitted)
        ended = self._ended.note(moment, now.done + now.needs_attention)
        if self._console.is_terminal:
            self._live.update(_drawing(now, elapsed, submitted, ended), refresh=True)
            return
        said = line(now)
        if said != self._said and (
            moment - self._said_at >= LINE_SECONDS or now.finished or not self._said
        ):
            text = f"{elapsed:5.0f} s  {said}  {ended:.1f} ended/s"
            self._console.print(text, highlight=False, soft_wrap=True)
            self._said_at, self._said = moment, said


def line(now: Standing) -> str:
    """The standing in one line of text."""
    parts = [
        f"working {now.working} (pending {now.pending}, submitting {now.submitting}, "
        f"queued {now.queued}, processing {now.processing})",
        f"done {now.done}",
        f"needs attention {now.needs_attention}",
    ]
    if now.lacks_result:
        parts.insert(2, f"results to fetch {now.lacks_result}")
    return "  ".join([*parts, *map(_gate_text, now.gates)])


def _gate_text(gate: Gate) -> str:
    if gate.seconds == float("inf"):
        return f"{gate.name} gate closed until a person opens it ({gate.reason})"
    if gate.seconds <= 0:
        return f"{gate.name} gate half open ({gate.reason})"
    return f"{gate.name} gate closed for {gate.seconds:.0f} s ({gate.reason})"


def _drawing(now: Standing, elapsed: float, submitted: float, ended: float) -> Group:
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", min_width=6)
    table.add_column(min_width=16)
    table.add_column()
    details = [
        f"{number} {name}"
        for name, number in (
            ("pending", now.pending),
            ("submitting", now.submitting),
            ("queued", now.queued),
            ("processing", now.processing),
        )
        if number
    ]
    table.add_row(str(now.working), Text("working", "cyan"), Text(", ".join(details), "dim"))
    fetch = f"{now.lacks_result} results to fetch" if now.lacks_result else ""
    table.add_row(str(now.done), Text("done", "green"), Text(fetch, "dim"))
    table.add_row(str(now.needs_attention), Text("needs attention", "yellow"), "")
    ends = now.done + now.needs_attention
    bar = ProgressBar(total=max(now.rows, 1), completed=ends, width=60)
    gates = Text("   ".join(map(_gate_text, now.gates)), "yellow")
    pace = Text(f"{elapsed:.0f} s   {submitted:.0f} submitted/s   {ended:.0f} ended/s", "dim")
    return Group(bar, table, pace, gates)
