"""The command that explains one row: why."""

import json
from typing import Annotated

import typer

from local.command_line import ids
from local.command_line.context import Session
from local.command_line.errors import CommandError
from local.command_line.output import state_text, table


def why(session: Session, job: Annotated[str, typer.Argument(metavar="ID", help=ids.HELP)]) -> None:
    """Tell a row's story in plain words: what happened, ids for Sume's support, what is next."""
    from sume_jobs.decisions.advice import advise
    from sume_jobs.flows import stats
    from sume_jobs.store import job_views, operator_views, pace

    from local.command_line import story

    row_id = ids.row(session, job)
    found = job_views.support(session.database, row_id)
    if found is None:
        raise CommandError(f"Row {row_id} was deleted at this very moment.")
    row = json.loads(found["job"])
    needs = found["state"] == "needs_attention"
    advice = advise(found) if needs else None
    row["advice"] = advice and {"reason": advice.reason, "action": advice.action}
    gates = {each["name"]: each for each in map(stats.gate, pace.state(session.database))}
    moments = story.timeline(row)
    support = story.request_ids(row)
    following = story.next_step(row, gates["writes"], operator_views.now(session.database))
    session.output.result(
        {
            "id": row["id"],
            "reference": row["reference"],
            "state": row["state"],
            "timeline": [{"at": each.at, "text": each.text} for each in moments],
            "for_support": support,
            "next": following,
        },
        table(
            "", "",
            rows=(("row", row["id"]), ("reference", row["reference"]),
                  ("state", state_text(row["state"]))),
            header=False,
        ),
        table("when", "what", rows=((each.at, each.text) for each in moments)),
        table("for Sume's support", "", rows=support.items()),
        f"Next: {following}",
    )  # fmt: skip
