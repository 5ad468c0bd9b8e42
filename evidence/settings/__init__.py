"""The documents' three settings, each through its own framework, governed and trained."""

from __future__ import annotations
