"""docs/deploy.md: its arithmetic is right, its names exist, its SQL runs."""

from __future__ import annotations

import re

import pytest
from psycopg.errors import InsufficientPrivilege
from sume_jobs.flows import poll, submit

from tests.support.bundle import Bundle
from tests.support.postgres import Database
from tests.template.deployment import ROOT, source
from tests.template.test_operations import ALARMS, metrics

PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
SQL = re.findall(r"^```sql\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
TIMES = "\N{MULTIPLICATION SIGN}"
# Named in the page like parameters, but they are something else.
OTHERS = {"DatabaseIsNewer", "ConcurrentExecutions"}


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def computed(expression: str) -> float:
    """The value of an arithmetic expression of the page."""
    plain = expression.replace(",", "").replace(TIMES, "*").replace("÷", "/")
    assert re.fullmatch(r"[\d.+*/() ]+", plain), expression
    value: float = eval(plain)
    return value


def test_the_arithmetic_of_the_costs_is_right() -> None:
    total, sums, lines = 0.0, 0, 0
    for line in PAGE.split("## What it costs")[1].split("\n## ")[0].splitlines():
        if not line.startswith("|") or not re.search(r"\d\*{0,2} \|$", line):
            continue
        what, expression, amount = cells(line)
        shown = float(amount.strip("*").replace(",", ""))
        if what == "**all**":
            assert shown == pytest.approx(total, abs=0.005)
            total, sums = 0.0, sums + 1
        else:
            assert computed(expression) == pytest.approx(shown, abs=0.0055), what
            total, lines = total + shown, lines + 1
    assert sums == 2
    assert lines > 25


def test_the_number_of_alarms_is_the_template_s() -> None:
    looked_at = sum(len(metrics(name)) for name in ALARMS)
    assert PAGE.count(f"{looked_at} {TIMES} 0.1") == 2


def test_the_number_of_metrics_is_the_code_s() -> None:
    sent = set(poll.METRICS) | set(submit.METRICS)
    for file in [*ROOT.glob("shared/**/*.py"), *ROOT.glob("functions/**/*.py")]:
        source_text = file.read_text(encoding="utf-8")
        sent |= set(re.findall(r"\b(?:count|gauge|seconds)\(\s*\"([A-Z]\w+)\"", source_text))
    assert PAGE.count(f"{len(sent)} {TIMES} 0.3") == 2


def test_every_parameter_and_output_that_is_named_exists() -> None:
    template = source()
    known = set(template["Parameters"]) | set(template["Outputs"]) | OTHERS
    named = set(re.findall(r"`([A-Z][a-z]+(?:[A-Z][a-z]+)+)(?:=[^`]*)?`", PAGE))
    named |= set(re.findall(r"<([A-Z]\w+)>", PAGE))
    named |= set(re.findall(r'^  "([A-Z]\w+)=', PAGE, re.MULTILINE))
    assert len(named) > 20
    assert named <= known


def test_every_command_of_make_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"make\s+([a-z-]+)", PAGE)):
        if target not in ("tables", "other", "sure", "it", "those"):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_every_link_leads_somewhere() -> None:
    headings = {
        re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
    }
    for target in re.findall(r"\]\(([^)]+)\)", PAGE):
        if target.startswith("#"):
            assert target[1:] in headings
        else:
            assert (ROOT / "docs" / target).is_file()


def test_its_sql_runs(database: Database) -> None:
    setup, _, *others = SQL
    with database.session(user=None) as session:
        session.execute(setup)
        session.rollback()
    assert others
    for statement in others:
        with database.session() as session:
            session.execute(statement)
            session.rollback()


def test_what_is_granted_is_all_that_an_application_needs(bundle: Bundle) -> None:
    row, job = bundle.job()
    again = "update render_jobs set generation = generation + 1 where reference = %s"
    cancel = "update render_jobs set cancel_requested_at = now() where "
    with bundle.database.session(user=None) as session:
        session.execute("alter schema public rename to sume_jobs")
        session.execute("create schema public")
        session.execute("set local search_path = sume_jobs")
        session.execute("select sume_pin_triggers()")
        session.execute("create role shop")
        session.execute(SQL[1])
        session.execute("set local search_path = public, sume_jobs")
        session.execute("set local role shop")
        made = session.execute(
            "insert into render_jobs (prompt, reference) values ('a mug', 'order-1')"
            " on conflict (reference) where reference is not null do nothing returning id"
        ).fetchone()
        assert made is not None
        session.execute("update render_jobs set priority = 0 where reference = 'order-1'")
        assert session.execute(cancel + "reference = 'order-1'").rowcount == 1
        assert session.execute(again, ("order-1",)).rowcount == 1
        assert session.execute(cancel + "id = %s", (row,)).rowcount == 1
        states = session.execute(
            "select state from job_customer where id = any (%s)", ([row, *made],)
        )
        assert [state for (state,) in states] == ["working", "working"]
        for refused in (
            "update render_jobs set status = 'failed'",
            "select from gen_job",
            "delete from job_history",
        ):
            with pytest.raises(InsufficientPrivilege), session.transaction():
                session.execute(refused)
        session.execute("reset role")
        wished = session.execute(
            "select cancel_due_at is not null from gen_job where job_id = %s", (job,)
        )
        assert wished.fetchone() == (True,)
        session.rollback()


@pytest.mark.parametrize(
    "name", ["SubmitFunction", "PollFunction", "ReapFunction", "DispatchFunction"]
)
def test_the_costs_reckon_with_the_memory_of_the_template(name: str) -> None:
    assert source()["Resources"][name]["Properties"]["MemorySize"] == 0.25 * 1024
    assert PAGE.count("0.25 \N{MULTIPLICATION SIGN} 0.0000133334") == 4
