"""Structured logs; metrics and Events find their room here."""
