"""Governs a whole Python process and its children: ``lgov run``, its report, the import guard."""
