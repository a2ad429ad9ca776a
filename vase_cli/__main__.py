"""``python -m vase_cli`` is ``vase``."""

from vase_cli.cli.app import main

if __name__ == "__main__":
    main()
