"""`python -m lgov_core`: the command `lgov`, also where the folder of scripts is not on the path."""

from lgov_core.commands import main

if __name__ == "__main__":
    main()
