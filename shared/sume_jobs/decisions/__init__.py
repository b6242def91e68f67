"""Pure decisions: no clock, no network, no database, only the standard library."""
