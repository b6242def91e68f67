"""Statements whose plans the database keeps.

Behind a pooler nothing can be prepared, so that the server would read and plan a long statement
anew at each call, which takes longer than to run it. A function keeps its plan for as long as the
server's session lives, whoever uses the session. The text stays where it is, in `store`: migrate
makes the functions from it, each under a name that holds the digest of its text, and where a
function is missing the text itself is run.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import Final

# The plan is made once, perhaps while the tables are still empty: it has to be right for any size
# of them. So it is made without the values, and goes by the indexes.
_BY_INDEX: Final = (
    "plan_cache_mode = force_generic_plan",
    "enable_seqscan = off",
    "enable_bitmapscan = off",
    # Penalties for what is switched off would pass for costs that are worth compiling.
    "jit = off",
)
# The first few of what may be very many: found in the order of the index, never sorted.
_IN_ORDER: Final = "enable_sort = off"
# Of a batch the planner believes that it has ten rows. Loops over it would take the square of it,
# and to merge with it a table that was small once would be read whole.
_IN_BATCHES: Final = ("enable_nestloop = off", "enable_mergejoin = off")

_PARAMETER: Final = re.compile(r"%\((\w+)\)s")
NAME_PATTERN: Final = r"^sume_[a-z_]+_[0-9a-f]{16}$"


class StoredStatement(str):
    """The text of a statement with named parameters, `%(name)s`, and the name of its function.

    `in_order` tells that it takes the first of many rows, `in_batches` that it joins what a batch
    brings with what it finds.
    """

    label: str
    settings: tuple[str, ...]

    def __new__(
        cls, label: str, text: str, *, in_order: bool = False, in_batches: bool = False
    ) -> StoredStatement:
        """Keep the text; `label` is a word of lower-case letters and underscores."""
        statement = super().__new__(cls, text)
        statement.label = label
        statement.settings = (
            *_BY_INDEX,
            *([_IN_ORDER] if in_order else []),
            *(_IN_BATCHES if in_batches else []),
        )
        return statement

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters, in the order in which the function takes them."""
        return tuple(dict.fromkeys(_PARAMETER.findall(self)))

    @cached_property
    def numbered(self) -> str:
        """The text with `$1` for the first parameter, as a function's body has it."""
        return _PARAMETER.sub(lambda found: f"${self.parameters.index(found[1]) + 1}", self)

    @cached_property
    def function(self) -> str:
        """The name of the function."""
        import hashlib

        digest = hashlib.sha256("\n".join((*self.settings, self)).encode()).hexdigest()
        return f"sume_{self.label}_{digest[:16]}"

    @cached_property
    def call(self) -> str:
        """The statement that calls the function: the same parameters, and the same rows where the
        text gives any.
        """
        arguments = ", ".join(f"%({each})s" for each in self.parameters)
        return f"select * from {self.function}({arguments})"  # noqa: S608 - names of ours
