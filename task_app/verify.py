"""Proving a trace database: every episode is played again and compared with what is stored of it."""
