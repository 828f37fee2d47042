"""APEX: which expert drafts for a request's next block, and how many tokens (design section 6; papers/apex)."""
