"""What APEX's choices gain over every fixed expert and depth (papers/apex section 5)."""
