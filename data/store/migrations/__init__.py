"""Alembic scripts of the store; run by `palomar.data.store.migrate`."""
