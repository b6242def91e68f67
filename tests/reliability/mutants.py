"""Mutation check: is there a test that notices when a guard is gone?

    python -m tests.reliability.mutants                      every mutant, survivors at the end
    python -m tests.reliability.mutants --only render_jobs   those of one module
    python -m tests.reliability.mutants --match 'CLAIM:'     those with that in their description
    python -m tests.reliability.mutants --list               what would be run, and nothing more
    python -m tests.reliability.mutants --report             the table of what was tried so far

What is changed is told in `mutant_sources.py`. A mutant that PostgreSQL or Python cannot read is
not counted. Each goes through the tests that should notice it, those first that noticed most so
far; one that these let pass goes through a second, longer set. What then still passes is a
survivor: it needs a test, or stands in `mutant_equivalents.py` with the reason why nobody can tell
it from the original.

What was killed is kept in a file (`--results`) and not tried again while its statement or function
stays as it is; survivors are tried again each time.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.reliability.mutant_equivalents import EQUIVALENT
from tests.reliability.mutant_sources import Mutant, mutants_of
from tests.reliability.mutant_trials import LAYER, ROOT, Bench, Known, Reader, Stage

RESULTS = ROOT / ".local" / "mutants.jsonl"

DATABASE = "tests/database"
NEAR = (
    f"{DATABASE}/test_every_case.py",
    f"{DATABASE}/test_bystanders.py",
    f"{DATABASE}/test_guards.py",
)
GUARDS = ("tests/reliability/test_guards.py", "tests/reliability/test_found.py")
# Races of many sessions are long and seldom the only ones to notice: the second set has them.
QUICK = (
    "-k",
    "not twenty and not ten_ends and not opposite and not many_times and not bounded"
    " and not many_workers and not lock_each_other_out",
)
# For each part of the layer: where its mutants are to be noticed at once, and where else.
SETS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "store/render_jobs.py": (
        (f"{DATABASE}/test_every_claim.py", f"{DATABASE}/test_every_stale_claim.py",
         f"{DATABASE}/test_record_guards.py", *NEAR, f"{DATABASE}/test_operator_acts.py",
         f"{DATABASE}/test_render_jobs.py", f"{DATABASE}/test_record_paths.py",
         f"{DATABASE}/test_spend.py"),
        (*GUARDS, DATABASE, "tests/dispatch/test_dispatch.py", "tests/pitfalls/test_submit.py",
         "tests/pitfalls/test_reap.py", "tests/property"),
    ),
    "store/gen_jobs.py": (
        (*NEAR, f"{DATABASE}/test_every_job.py", f"{DATABASE}/test_gen_jobs.py"),
        (*GUARDS, DATABASE, "tests/dispatch/test_archive.py", "tests/pitfalls/test_poll.py",
         "tests/property"),
    ),
    "store/webhook_events.py": (
        (f"{DATABASE}/test_every_event.py", f"{DATABASE}/test_webhook_events.py", *NEAR),
        (*GUARDS, DATABASE, "tests/pitfalls/test_webhook.py", "tests/property"),
    ),
    "store/pace.py": (
        (f"{DATABASE}/test_pace.py", *NEAR, f"{DATABASE}/test_operator_acts.py",
         f"{DATABASE}/test_every_claim.py", f"{DATABASE}/test_spend.py",
         f"{DATABASE}/test_render_jobs.py", f"{DATABASE}/test_every_job.py"),
        (*GUARDS, DATABASE, "tests/reliability/test_pace_gates.py",
         "tests/pitfalls/test_pacing.py"),
    ),
    "store/follow_ups.py": (
        (f"{DATABASE}/test_every_end.py", *NEAR),
        ("tests/dispatch/test_dispatch.py", "tests/dispatch/test_rules.py", DATABASE),
    ),
    "store/retention.py": (
        (f"{DATABASE}/test_every_end.py", f"{DATABASE}/test_housekeeping.py", *NEAR),
        (DATABASE, "tests/dispatch/test_dispatch.py"),
    ),
    "store/enqueue.py": (("tests/api/test_api.py",), ("tests/api", DATABASE)),
    "store/levels.py": ((f"{DATABASE}/test_housekeeping.py",), (DATABASE, "tests/api")),
    "store/job_views.py": (
        ("tests/api/test_api.py", "tests/api/test_board.py", "tests/api/test_history.py"),
        (DATABASE, "tests/api"),
    ),
    "store/migrations.py": ((f"{DATABASE}/test_migrations.py",), (DATABASE,)),
    "store/migrations/0004": (
        (f"{DATABASE}/test_spend.py", f"{DATABASE}/test_operator_acts.py",
         f"{DATABASE}/test_every_trigger.py"),
        (DATABASE, "tests/pitfalls/test_submit.py"),
    ),
    "store/migrations/0005": (
        (f"{DATABASE}/test_every_trigger.py", f"{DATABASE}/test_refusals.py",
         f"{DATABASE}/test_operator_acts.py"),
        (DATABASE, "tests/api/test_history.py", *GUARDS),
    ),
    "store/migrations/0006": (
        (f"{DATABASE}/test_every_trigger.py", f"{DATABASE}/test_whoever_writes.py"),
        (DATABASE, "tests/dispatch/test_role_settings.py"),
    ),
    "store/migrations/": (
        (f"{DATABASE}/test_every_trigger.py", f"{DATABASE}/test_refusals.py",
         f"{DATABASE}/test_migrations.py::test_a_database_that_cannot_hold_prompts_is_refused"),
        (DATABASE, "tests/api/test_api.py", "tests/api/test_history.py", *GUARDS,
         "tests/pitfalls/test_submit.py"),
    ),
    "decisions/outcomes.py": (
        ("tests/unit/test_outcomes.py", "tests/unit/test_answers.py"),
        (*GUARDS, "tests/pitfalls/test_submit.py", "tests/pitfalls/test_poll.py",
         "tests/pitfalls/test_pacing.py",
         "tests/pitfalls/test_connections.py::test_p72_an_api_key_rotated_while_warm"),
    ),
    "decisions/status.py": (("tests/unit/test_status.py",), (f"{DATABASE}/test_gen_jobs.py",)),
    "decisions/signature.py": (
        ("tests/unit/test_signature.py",), ("tests/pitfalls/test_webhook.py",),
    ),
    "decisions/backoff.py": (("tests/unit/test_backoff.py",), ("tests/pitfalls/test_pacing.py",)),
    "decisions/pacing.py": (
        ("tests/unit/test_pacing.py",), ("tests/unit", "tests/pitfalls/test_pacing.py"),
    ),
    "flows/gates.py": (
        ("tests/reliability/test_pace_gates.py",), ("tests/pitfalls/test_pacing.py",),
    ),
    "flows/time_left.py": (("tests/pitfalls/test_reap.py",), ("tests/pitfalls/test_submit.py",)),
    "flows/submit.py": (
        ("tests/pitfalls/test_submit.py", *GUARDS),
        ("tests/pitfalls/test_pacing.py", "tests/reliability/test_pace_gates.py",
         "tests/pitfalls/test_reap.py", "tests/pitfalls/test_connections.py",
         "tests/aws/test_secrets_manager.py", "tests/database/test_telemetry.py"),
    ),
    "flows/sume_access.py": (
        ("tests/pitfalls/test_connections.py", "tests/pitfalls/test_submit.py"),
        ("tests/pitfalls/test_poll.py", "tests/aws/test_secrets_manager.py"),
    ),
    "flows/paced_run.py": (
        ("tests/unit/test_paced_run.py",),
        ("tests/pitfalls/test_submit.py", "tests/pitfalls/test_pacing.py",
         "tests/pitfalls/test_connections.py", "tests/reliability/test_pace_gates.py",
         "tests/pitfalls/test_reap.py"),
    ),
    "flows/poll.py": (
        ("tests/pitfalls/test_poll.py", *GUARDS),
        ("tests/pitfalls/test_pacing.py", "tests/reliability/test_pace_gates.py",
         "tests/pitfalls/test_webhook.py", "tests/aws/test_secrets_manager.py"),
    ),
    "flows/reap.py": (
        ("tests/pitfalls/test_reap.py", *GUARDS),
        ("tests/dispatch/test_dispatch.py", "tests/database/test_telemetry.py", "tests/pitfalls"),
    ),
    "flows/webhook.py": (
        ("tests/pitfalls/test_webhook.py",),
        (*GUARDS, "tests/reliability/test_fuzz_inputs.py", "tests/aws/test_secrets_manager.py"),
    ),
    "flows/dispatch.py": (
        ("tests/dispatch/test_dispatch.py",),
        ("tests/dispatch/test_rules.py",),
    ),
}  # fmt: skip


def sets_of(path: str) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """The tests for a file of the layer; None for one that is not mutated."""
    return next((sets for part, sets in SETS.items() if path.startswith(part)), None)


def all_mutants(only: str = "") -> list[Mutant]:
    """What there is to try, in order of file and place, whether it can be run or not."""
    files = [*(ROOT / LAYER).rglob("*.py"), *(ROOT / LAYER).rglob("*.sql")]
    texts = {str(file.relative_to(ROOT / LAYER)): file.read_text() for file in sorted(files)}
    return [
        mutant
        for path, text in texts.items()
        if sets_of(path) is not None and only in path
        for mutant in mutants_of(path, text)
        if not _is_made_anew(mutant, texts)
    ]


def _is_made_anew(mutant: Mutant, texts: dict[str, str]) -> bool:
    """Whether a later migration replaces what this one makes."""
    later = [text for path, text in texts.items() if path.endswith(".sql") and path > mutant.path]
    return mutant.path.endswith(".sql") and any(
        re.search(rf"create or replace (?:view|function) {re.escape(mutant.definition)}\b", text)
        for text in later
    )


def equivalence(mutant: Mutant) -> str | None:
    """Why nobody can tell this mutant from the original; None where somebody should."""
    return EQUIVALENT.get(mutant.path, {}).get(mutant.change)


class Results:
    """What was tried so far: one line of JSON for each mutant and statement as it stood."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.known: dict[str, dict[str, Any]] = {}
        self.killers: dict[str, Counter[str]] = defaultdict(Counter)
        self._lock = threading.Lock()
        if file.exists():
            for line in file.read_text().splitlines():
                self._take(json.loads(line))

    def _take(self, entry: dict[str, Any]) -> None:
        self.known[entry["name"]] = entry
        if entry["killer"]:
            definition = entry["name"].split(":")[0]
            self.killers[definition][entry["killer"]] += 1
            self.killers[definition.split(" ")[0]][entry["killer"]] += 1

    def add(self, mutant: Mutant, outcome: str, killer: str, seconds: float) -> None:
        entry = {
            "name": mutant.name,
            "fingerprint": mutant.fingerprint,
            "outcome": outcome,
            "killer": killer,
            "seconds": seconds,
        }
        with self._lock:
            self._take(entry)
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a") as results:
                results.write(json.dumps(entry, ensure_ascii=False) + "\n")

    def outcome(self, mutant: Mutant) -> str | None:
        entry = self.known.get(mutant.name)
        fits = entry is not None and entry["fingerprint"] == mutant.fingerprint
        return entry["outcome"] if entry is not None and fits else None

    def likely(self, mutant: Mutant) -> list[str]:
        """The tests that noticed most mutants of this statement, then of this file."""
        near = self.killers[f"{mutant.path} {mutant.definition}"].most_common(4)
        far = self.killers[mutant.path].most_common(3)
        return list(dict.fromkeys(name for name, _ in near + far))


def report(mutants: Iterable[Mutant], results: Results) -> int:
    """Print the table and what is open; gives the number of survivors."""
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    open_ones = []
    for mutant in mutants:
        reason = equivalence(mutant)
        outcome = "equivalent" if reason else results.outcome(mutant) or "not tried"
        if outcome == "unreadable":
            continue
        rows[mutant.path][outcome] += 1
        if outcome == "survived":
            open_ones.append(f"survived: {mutant.path}:{mutant.line} {mutant.change}")
        if reason:
            print(f"equivalent: {mutant.path} {mutant.change}\n            {reason}")
    kinds = ("killed", "equivalent", "survived", "not tried")
    print(f"\n| {'module':34} | tried | {' | '.join(kinds)} |")
    total: Counter[str] = Counter()
    for path, row in [*rows.items(), ("all", total)]:
        cells = " | ".join(f"{row[kind]:{len(kind)}}" for kind in kinds)
        tried = row["killed"] + row["equivalent"] + row["survived"]
        print(f"| {path:34} | {tried:5} | {cells} |")
        if row is not total:
            total.update(row)
    print("\n".join(["", *open_ones]))
    print(
        f"tried {total['killed'] + total['equivalent'] + total['survived']},"
        f" killed {total['killed']}, equivalent {total['equivalent']},"
        f" survivors {total['survived']}, not tried {total['not tried']}"
    )
    return total["survived"]


def main(arguments: list[str] | None = None) -> int:
    """Command line; 1 where a mutant survives that is not known to be equivalent."""
    parser = argparse.ArgumentParser(prog="python -m tests.reliability.mutants")
    parser.add_argument("--only", nargs="*", default=[""], help="parts of modules' paths")
    parser.add_argument("--match", default="", help="part of a mutant's description")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--sample", type=int, help="that many, drawn")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first-set-only", action="store_true", help="survivors are candidates")
    parser.add_argument("--second-set-only", action="store_true", help="for known survivors")
    parser.add_argument("--survivors-only", action="store_true", help="try these again")
    parser.add_argument("--new-only", action="store_true", help="leave known survivors")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where they are kept")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin none after that")
    given = parser.parse_args(arguments)
    results = Results(given.results)
    mutants = [
        each for part in given.only for each in all_mutants(part) if given.match in each.change
    ]
    if given.report:
        return bool(report(mutants, results))
    reader = Reader()
    try:
        waiting = [
            each
            for each in mutants
            if equivalence(each) is None
            and results.outcome(each) not in ("killed", "unreadable")
            and not (given.new_only and results.outcome(each))
            and not (given.survivors_only and results.outcome(each) != "survived")
        ]
        if given.sample is not None and given.sample < len(waiting):
            waiting = random.Random(given.seed).sample(waiting, given.sample)
        if given.list:
            print("\n".join(f"{each.path}:{each.line} {each.change}" for each in waiting))
            print(f"{len(waiting)} mutants to try")
            return 0
        _try_all(waiting, results, reader, given)
    finally:
        reader.close()
    return bool(report(mutants, results))


def _try_all(
    waiting: list[Mutant], results: Results, reader: Reader, given: argparse.Namespace
) -> None:
    until = time.monotonic() + given.seconds
    left = list(reversed(waiting))
    failures: list[BaseException] = []

    def work(bench: Bench) -> None:
        try:
            while left and time.monotonic() < until and not failures:
                mutant = left.pop()
                if not reader.can_read(mutant):
                    results.add(mutant, "unreadable", "", 0.0)
                    continue
                sets = sets_of(mutant.path)
                assert sets is not None
                stages = [
                    stage
                    for stage, is_wanted in (
                        (Stage(sets[0], 150.0, QUICK), not given.second_set_only),
                        (Stage(sets[1], 900.0), not given.first_set_only),
                    )
                    if is_wanted
                ]
                outcome, killer, took = bench.try_mutant(mutant, stages, results.likely(mutant))
                results.add(mutant, outcome, killer, took)
                print(f"{outcome:9}{took:6.1f} s  {mutant.name}", flush=True)
        except BaseException as error:
            failures.append(error)

    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        known = Known()
        benches = [
            Bench(Path(folder) / f"{n}", reader.server, known) for n in range(given.processes)
        ]
        threads = [threading.Thread(target=work, args=(bench,)) for bench in benches]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for bench in benches:
            bench.close()
    if failures:
        raise failures[0]


if __name__ == "__main__":
    sys.exit(main())
