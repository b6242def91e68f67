"""Run paid Sume generations from a Postgres table: the layer that every function shares.

Imports run one way: handlers -> flows -> store and sume_client -> decisions.
Nothing is opened, read or decided at import.
"""

__version__ = "0.1.0"
