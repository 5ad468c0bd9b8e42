"""The audit record: append-only, chained, committed before the act."""

from lgov_core.audit.entry import AuditEntry
from lgov_core.audit.log import AuditLog
from lgov_core.audit.verify import VerifyReport, verify

__all__ = ["AuditEntry", "AuditLog", "VerifyReport", "verify"]
