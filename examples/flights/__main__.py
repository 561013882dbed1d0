"""The demonstration: `python -m examples.flights`, or `make demo`."""

import sys

from examples.flights.demo import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
