"""Data without torch: descriptors, recipes, contracts, observations, verdicts, reports, and how they are serialised."""
