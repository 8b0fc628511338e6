"""`python -m inferd`."""

from inferd.service import main

if __name__ == "__main__":
    main()
