"""Cannot be imported, for the tests of the local runner."""

raise ImportError("this module does not import")
