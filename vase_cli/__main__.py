"""The ``vase`` command, and ``python -m vase_cli``: catches a Ctrl-C from its first import on."""

import os


def main() -> None:
    """Run the command line and exit; see :func:`vase_cli.cli.app.main`."""
    try:
        from vase_cli.cli.app import main as run
    except KeyboardInterrupt:
        os.write(2, b"vase: interrupted\n")
        os._exit(130)
    run()


if __name__ == "__main__":
    main()
