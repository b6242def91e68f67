"""All SQL of the project, one module a table."""
