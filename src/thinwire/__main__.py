"""``python -m thinwire``: the same as the command ``thinwire``."""

from thinwire.cli.app import main

if __name__ == "__main__":
    main()
