"""The independent checkers: they prove ledger and market from the log alone, and share no code with the services."""
