"""The six workloads that speculation is recorded and judged on (papers/apex section 3)."""
