"""`python -m skulkd`: the same as the `skulkd` script."""

from skulkd.cli import main

if __name__ == "__main__":
    main()
