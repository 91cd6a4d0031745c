"""The database: SQLite or PostgreSQL behind the same code."""
