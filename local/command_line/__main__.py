"""`python -m local.command_line`, which the script `sume-jobs` runs."""

from __future__ import annotations

from local.command_line.app import app

if __name__ == "__main__":
    app(prog_name="sume-jobs")
