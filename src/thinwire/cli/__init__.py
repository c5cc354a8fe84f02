"""The command line: parses, checks, calls, prints. Nothing else lives here."""
