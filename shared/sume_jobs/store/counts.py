"""Parts of statements that count rows without ever walking a table."""

from __future__ import annotations

from typing import Final

# Rows may bear any instant, also an infinite one, which cannot be subtracted from now() before
# PostgreSQL 17 and gives no age after; none is taken for older than this.
LONG_AGO: Final = "now() - interval '30 years'"


def counted(query: str, order: str, most: int) -> str:
    """Count the rows of `query`, up to `most`.

    `order` is the order of the index that they are to be read from: with it and the limit the
    planner takes that index, even where it believes that nearly every row matches.
    """
    return f"(select count(*) from ({query} order by {order} limit {most}) x)"


def estimated(index: str) -> str:
    """Give the number of rows in an index as of its last vacuum or analyze."""
    return f"(select reltuples from pg_class where oid = '{index}'::regclass)"
