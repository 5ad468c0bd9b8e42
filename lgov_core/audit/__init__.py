"""The audit record: append-only, chained, signed, committed before the act."""

from lgov_core.audit.lineage import LineageReport, verify_lineage
from lgov_core.audit.log import AuditLog
from lgov_core.audit.reading import AuditEntry, EntrySelection
from lgov_core.audit.redaction import Redaction
from lgov_core.audit.signing import Signer, SigningKey, default_key_path, default_signer, load_key, make_key
from lgov_core.audit.verify import VerifyReport, verify

__all__ = [
    "AuditEntry",
    "AuditLog",
    "EntrySelection",
    "LineageReport",
    "Redaction",
    "Signer",
    "SigningKey",
    "VerifyReport",
    "default_key_path",
    "default_signer",
    "load_key",
    "make_key",
    "verify",
    "verify_lineage",
]
