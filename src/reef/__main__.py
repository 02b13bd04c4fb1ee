"""`python -m reef` is `reef`."""

from reef.cli import main

if __name__ == "__main__":
    main()
