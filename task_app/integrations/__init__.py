"""Adapters that others' trainers import. Each knows one of them and is imported by nobody here."""
