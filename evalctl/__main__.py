"""`python -m evalctl`."""

from evalctl.main import main

if __name__ == "__main__":
    main()
