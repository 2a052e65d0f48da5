"""Verbs behind the facade that need no model: one a file, imported when first used, because each has its libraries."""
