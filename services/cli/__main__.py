"""``python -m services.cli``: the same as the ``forerun`` command."""

from services.cli.main import app

if __name__ == "__main__":
    app()
