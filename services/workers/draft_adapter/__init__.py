"""The draft adapter of a pipeline's first stage: its file format and a plain PyTorch form of it."""
