"""Training of what drafts: one folder for each kind of drafter; what they share lies beside the folders."""
