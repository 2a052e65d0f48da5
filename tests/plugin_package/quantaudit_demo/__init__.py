"""An extension of quantaudit: one scheme, one observer, one probe set, and one entry that does not load."""
