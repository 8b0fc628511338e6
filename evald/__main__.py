"""`python -m evald`. Apart from the service, since its workers import the module that a process began with."""

from evald.service import main

if __name__ == "__main__":
    main()
