"""APEX-Router: who drafts for a request and how deep its first block is, by its prompt (papers/apex section 4.2)."""
