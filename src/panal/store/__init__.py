"""The database: SQLite or PostgreSQL behind the same code."""

from panal.store.store import Store, Transaction, open_store

__all__ = ["Store", "Transaction", "open_store"]
