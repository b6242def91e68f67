"""Tests of pure decisions and of modules without a database."""

from __future__ import annotations

from tests.support.examples import load_profile

load_profile()
