"""The page Governance and the page Approvals: decisions over time, the audit record, policy replay, calls that wait."""
