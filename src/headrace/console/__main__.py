"""The console as a node of a cluster: `python -m headrace.console HOME PORT HOST MARKER`.

What else there is to say comes from the cluster's settings: whether it is read-only, and where the password stands.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from headrace.cluster import Cluster
from headrace.console.server import Serving, serve
from headrace.errors import ConfigError, HeadraceError


def password_in(file: Path | None) -> str | None:
    """The password: of the environment, else the first line of the file."""
    given = os.environ.get("HEADRACE_CONSOLE_PASSWORD")
    if given or file is None:
        return given or None
    try:
        return file.read_text(encoding="utf-8").splitlines()[0].strip() or None
    except (OSError, UnicodeDecodeError, IndexError) as error:
        raise ConfigError(f"the password file {file} cannot be read", why=str(error)) from None


def main() -> None:
    home, port, host, _marker = sys.argv[1:]
    settings = Cluster(home).config.cluster
    try:
        serve(
            Serving(
                folder=Path(home) / "console",
                port=int(port),
                home=Path(home),
                host=host,
                password=password_in(settings.console_password_file),
                read_only=settings.console_read_only,
            )
        )
    except HeadraceError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
