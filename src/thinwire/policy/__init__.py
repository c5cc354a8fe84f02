"""Decisions as pure functions of what was observed: which codec for which layer. Importable without torch."""
