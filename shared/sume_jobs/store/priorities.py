"""The four priorities, band by band."""

from __future__ import annotations

from typing import Final

# To be joined laterally: with the priority matched by equality, nothing walks over rows that are
# dated in the future.
BANDS: Final = (
    "(values (0::smallint), (1::smallint), (2::smallint), (3::smallint)) as band (priority)"
)
