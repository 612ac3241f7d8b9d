"""`python -m paceline` is the command `paceline`."""

from .cli import main

raise SystemExit(main())
