"""The mutation check itself: what it changes, its list of equivalents, and a drawn share of it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.reliability.mutant_equivalents import EQUIVALENT
from tests.reliability.mutant_sources import mutants_of
from tests.reliability.mutant_trials import Bench, Known, Stage
from tests.reliability.mutants import all_mutants, equivalence, sets_of
from tests.support.postgres import Server

# How many are drawn for a run of the tests, of those that need no database.
DRAWN = 3


def changes(path: str, text: str) -> set[str]:
    return {mutant.change for mutant in mutants_of(path, text)}


def test_each_operand_of_a_condition_goes_and_each_bound_moves() -> None:
    text = '''
TAKE: Final = """
select case when a then coalesce(b, 1) end from t
 where c = 1 and (d between 1 and 2 or e is not null)
   and not exists (select from u where reaps < 2 limit 1)
 order by id limit %(n)s for update of t skip locked"""
'''
    assert changes("store/x.py", text) == {
        "TAKE: a → true",
        "TAKE: a → false",
        "TAKE: b, → nothing",
        "TAKE: , 1 → nothing",
        "TAKE: c = 1 → true",
        "TAKE: (d between 1 and 2 or e is not null) → true",
        "TAKE: d between 1 and 2 → true",
        "TAKE: d between 1 and 2 → false",
        "TAKE: e is not null → false",
        "TAKE: not exists (select from u where reaps < 2 limit 1) → true",
        "TAKE: reaps < 2 → true",
        "TAKE: reaps < 2 → reaps <= 2",
        "TAKE: limit 1 → nothing",
        "TAKE: limit %(n)s → nothing",
        "TAKE: skip locked → nothing",
        "TAKE: for update of t skip locked → nothing",
    }


def test_triggers_and_checks_of_a_migration_are_guards_too() -> None:
    text = """
create table t (
  a integer check (a > 0 or b is null)
);
create index t_a on t (a) where a > 0;
create trigger t_frozen before update on t
  for each row when (new.a is distinct from old.a)
  execute function refuse();
"""
    assert {"t: a > 0 → false", "t: a > 0 → true", "t: b is null → false"} <= changes(
        "store/migrations/0001.sql", text
    )
    assert "t_frozen: (new.a is distinct from old.a) → true" in changes(
        "store/migrations/0001.sql", text
    )
    assert not any(each.startswith("t_a") for each in changes("store/migrations/0001.sql", text))


def test_each_part_of_a_decision_is_changed() -> None:
    text = '''
WORDS = frozenset({"a", "b"})

def decide(status, code):
    """Decide."""
    if 200 <= status < 300 and not code:
        close(status)
    return status in (1, 2) or code
'''
    assert changes("decisions/x.py", text) == {
        'WORDS: "a", → nothing',
        'WORDS: "b" → nothing',
        "decide: 200 <= status → 200 < status",
        "decide: status < 300 → status <= 300",
        "decide: 200 <= status < 300 and → nothing",
        "decide: and not code → nothing",
        "decide: not code → code",
        "decide: close(status) → pass",
        "decide: status in (1, 2) → status not in (1, 2)",
        "decide: (1, 2) → (1,)",
        "decide: (1, 2) → (2,)",
        "decide: status in (1, 2) or → nothing",
        "decide: or code → nothing",
    }


def test_every_equivalent_is_a_mutant_that_there_is() -> None:
    """A statement that changed takes its equivalents with it: they are to be judged anew."""
    known = {(mutant.path, mutant.change) for mutant in all_mutants()}
    listed = {(path, change) for path, reasons in EQUIVALENT.items() for change in reasons}
    assert listed <= known, listed - known


def test_names_are_no_twos() -> None:
    names = [mutant.name for mutant in all_mutants()]
    assert len(names) == len(set(names)) > 1000


@pytest.mark.slow
def test_a_drawn_share_is_noticed(postgres: Server, tmp_path: Path) -> None:
    pure = [
        mutant
        for path in ("decisions/status.py", "decisions/signature.py", "decisions/backoff.py")
        for mutant in all_mutants(path)
        if equivalence(mutant) is None
    ]
    bench = Bench(tmp_path / "copy", postgres, Known())
    try:
        for mutant in random.Random(1).sample(pure, DRAWN):
            sets = sets_of(mutant.path)
            assert sets is not None
            outcome, _, _ = bench.try_mutant(mutant, [Stage(sets[0], 100.0)], [])
            assert outcome == "killed", mutant.name
    finally:
        bench.close()
