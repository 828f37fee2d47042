"""The page of ``forerun bench report``."""
