"""The console as a node of a cluster: `python -m headrace.console HOME PORT HOST MARKER`.

What else there is to say comes from the cluster's settings: whether it is read-only, and where the password stands.
"""

from __future__ import annotations

import sys
from pathlib import Path

from headrace.cluster import Cluster
from headrace.console.access import read_password
from headrace.console.server import Serving, serve
from headrace.errors import HeadraceError


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
                password=read_password(settings.console_password_file),
                read_only=settings.console_read_only,
            )
        )
    except HeadraceError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
