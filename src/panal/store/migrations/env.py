"""Alembic's entry: runs on the connection and inside the transaction that ``store.migrate`` hands in."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=False)
context.run_migrations()
