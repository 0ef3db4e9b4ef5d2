"""`python -m volt`"""

from volt.cli import main

if __name__ == "__main__":
    main()
