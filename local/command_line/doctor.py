"""The command that looks for what is wrong, and says what to do about it: doctor."""

import os
from typing import Any

from local.command_line.context import Session, log_beside_results
from local.command_line.errors import ACT, OK, CommandError
from local.command_line.output import printable, table

STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}


def doctor(session: Session) -> int:
    """Look at everything that can be wrong, and say what to do about it.

    Settings, secrets, the webhook's signature, database and schema, clocks, Sume and the budget,
    and whatever holds the queue up. It changes nothing, bills nothing and shows no secret; it reads
    twice at Sume. Ends with 1 if there is a problem.
    """
    from dataclasses import asdict

    from local.command_line.doctor_rounds import examine

    log_beside_results()
    try:
        environment = session.environment
    except CommandError as error:
        # Everything but the database can still be looked at.
        session.output.warn(str(error))
        environment = os.environ
    findings = [asdict(each) for each in examine(environment)]
    count = {level: sum(each["level"] == level for each in findings) for level in STYLES}
    document = {
        "healthy": not count["problem"],
        "problems": count["problem"],
        "warnings": count["warning"],
        "findings": findings,
    }
    summary = ", ".join(f"{number} {level}" for level, number in count.items())
    session.output.result(
        document,
        table("check", "", "finding", rows=[_row(each) for each in findings]),
        f"{len(findings)} findings: {summary}.",
    )
    return ACT if count["problem"] else OK


def _row(finding: dict[str, Any]) -> tuple[object, ...]:
    from rich.text import Text

    style = STYLES[finding["level"]]
    told = Text(printable(finding["sentence"]))
    if finding["advice"]:
        told.append(f"\n→ {printable(finding['advice'])}", style="bold")
    return finding["check"], Text(finding["level"], style=style), told
